"""SVG drawings for the pages, readable on a light and on a dark page."""

from xml.sax.saxutils import escape

STYLE = """\
.page { fill: #ffffff }
text { font: 13px system-ui, sans-serif; fill: #24292f }
.small { font-size: 11px; fill: #57606a }
.bold { font-weight: 600 }
.box { fill: #f6f8fa; stroke: #8c959f }
.frame { fill: none; stroke: #8c959f; stroke-dasharray: 5 4 }
.line { fill: none; stroke: #57606a; stroke-width: 1.5 }
.grid { fill: none; stroke: #d0d7de }
.blue { fill: #0969da; stroke: none }
.green { fill: #1a7f37; stroke: none }
.orange { fill: #bc4c00; stroke: none }
.curve { fill: none; stroke: #0969da; stroke-width: 2 }
.orange-line { stroke: #bc4c00 }
.green-line { stroke: #1a7f37 }
.grey-line { stroke: #57606a }
.grey { fill: #57606a; stroke: none }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117 }
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .box { fill: #161b22; stroke: #6e7681 }
  .frame { stroke: #6e7681 }
  .line { stroke: #9198a1 }
  .grid { stroke: #30363d }
  .blue { fill: #4493f8 }
  .green { fill: #3fb950 }
  .orange { fill: #f0883e }
  .curve { stroke: #4493f8 }
  .orange-line { stroke: #f0883e }
  .green-line { stroke: #3fb950 }
  .grey-line { stroke: #9198a1 }
  .grey { fill: #9198a1 }
}
"""


class Drawing:
    """Shapes in pixels, from the top left corner; `look` is a class of STYLE."""

    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{STYLE}</style>",
            f'<rect width="{width}" height="{height}" rx="8" class="page"/>',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto-start-reverse"><path class="line" '
            'd="M1 1 L7 4 L1 7"/></marker></defs>',
        ]

    def text(self, x, y, text, look="", anchor="start"):
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{look}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def box(self, x, y, width, height, look="box", radius=6):
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" '
            f'class="{look}"/>'
        )

    def line(self, points, look="line", arrow=False):
        path = " ".join(f"{x:.4g},{y:.4g}" for x, y in points)
        head = ' marker-end="url(#head)"' if arrow else ""
        self.parts.append(f'<polyline points="{path}" class="{look}"{head}/>')

    def dot(self, x, y, look, radius=4):
        self.parts.append(f'<circle cx="{x:.4g}" cy="{y:.4g}" r="{radius}" class="{look}"/>')

    def svg(self):
        return "\n".join([*self.parts, "</svg>\n"])
