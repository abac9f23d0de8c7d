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


def test_pictures_are_well_formed():
    pictures = sorted(PICTURES.glob("*.svg"))
    assert [p.name for p in pictures] == ["overview.svg", "run.svg"]
    for picture in pictures:
        root = ElementTree.parse(picture).getroot()
        assert root.find("{http://www.w3.org/2000/svg}title").text


def test_plots_are_well_formed():
    results = PICTURES.parent / "results"
    plots, page = sorted(results.glob("*.svg")), (results / "README.md").read_text()
    assert [plot.name for plot in plots] == sorted(re.findall(r"\((\S+\.svg)\)", page))
    for plot in plots:
        root = ElementTree.parse(plot).getroot()
        assert root.find("{http://www.w3.org/2000/svg}title").text


def test_screenshot_is_small():
    (picture,) = PICTURES.glob("*.png")
    assert picture.with_suffix(".py").exists(), "it can be made again"
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < 60_000
