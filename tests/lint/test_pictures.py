"""The committed drawings and the screenshot are well-formed, and shown."""

import re
from pathlib import Path
from xml.etree import ElementTree

PICTURES = Path(__file__).resolve().parents[2] / "bench" / "pictures"


def test_pictures_and_plots_are_well_formed():
    results = PICTURES.parent / "results"
    plots, page = sorted(results.glob("*.svg")), (results.parent / "RESULTS.md").read_text()
    assert [plot.name for plot in plots] == sorted(re.findall(r"\(results/(\S+\.svg)\)", page))
    for picture in (*PICTURES.glob("*.svg"), *plots):
        root = ElementTree.parse(picture).getroot()
        assert root.find("{http://www.w3.org/2000/svg}title").text
    (screenshot,) = PICTURES.glob("*.png")
    assert screenshot.read_bytes().startswith(b"\x89PNG") and screenshot.stat().st_size < 60_000
