"""The committed drawings are what their scripts draw; they and the screenshot are well-formed."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

PICTURES = Path(__file__).resolve().parents[2] / "bench" / "pictures"


def test_overview_is_up_to_date():
    script = [sys.executable, PICTURES / "overview.py"]
    drawn = subprocess.run(script, check=True, capture_output=True, text=True).stdout
    assert drawn == (PICTURES / "overview.svg").read_text()


def test_pictures_and_plots_are_well_formed():
    results = PICTURES.parent / "results"
    plots, page = sorted(results.glob("*.svg")), (results / "README.md").read_text()
    assert [plot.name for plot in plots] == sorted(re.findall(r"\((\S+\.svg)\)", page))
    for picture in (*PICTURES.glob("*.svg"), *plots):
        root = ElementTree.parse(picture).getroot()
        assert root.find("{http://www.w3.org/2000/svg}title").text
    (screenshot,) = PICTURES.glob("*.png")
    assert screenshot.read_bytes().startswith(b"\x89PNG") and screenshot.stat().st_size < 60_000
