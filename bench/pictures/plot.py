"""Log-log plots as SVG: each curve is named at its end, so a plot needs no legend."""

import math

from drawing import Drawing

LOOKS = ("blue", "green", "orange", "violet", "grey")
STYLE = """\
text { font-size: 22px }
.small { font-size: 20px }
.curve { stroke-width: 3 }
.blue-line { stroke: #0969da }
.orange-line { stroke: #bc4c00 }
.green-line { stroke: #1a7f37 }
.violet-line { stroke: #8250df }
.grey-line { stroke: #57606a }
.violet { fill: #8250df }
@media (prefers-color-scheme: dark) {
  .blue-line { stroke: #4493f8 }
  .orange-line { stroke: #f0883e }
  .green-line { stroke: #3fb950 }
  .violet-line { stroke: #ab7df8 }
  .grey-line { stroke: #9198a1 }
  .violet { fill: #ab7df8 }
}
"""
# Letters are large: pages show two plots next to each other.
WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 74, 196, 82, 72  # margins; the names are in the right one
NEAR = 24  # pixels between two names
TICKS = 7  # at most, on an axis
MAGNITUDES = "⁰¹²³⁴⁵⁶⁷⁸⁹"


def power(exponent):
    if 0 <= exponent <= 3:
        return f"{10**exponent:,}"
    sign = "⁻" if exponent < 0 else ""
    return "10" + sign + "".join(MAGNITUDES[int(digit)] for digit in str(abs(exponent)))


def decades(values):
    """The exponents of the axis: the whole powers of ten around all values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def ticks(low, high):
    return range(low, high + 1, -(-(high - low + 1) // TICKS))


def apart(heights):
    """Moves names down until none overlaps another. Returns heights in the given order."""
    placed, last = {}, -math.inf
    for n in sorted(range(len(heights)), key=lambda n: heights[n]):
        last = placed[n] = max(heights[n], last + NEAR)
    return [placed[n] for n in range(len(heights))]


def plot(title, x_name, y_name, curves):
    """Draws @curves, {name: [(x, y), …]}, with x and y above 0. Returns the SVG."""
    drawing = Drawing(WIDTH, HEIGHT, f"{title}: {y_name} against {x_name}")
    drawing.parts.append(f"<style>\n{STYLE}</style>")
    points = [point for curve in curves.values() for point in curve]
    spans = [decades([point[axis] for point in points]) for axis in (0, 1)]
    edges = ((LEFT, WIDTH - RIGHT), (HEIGHT - BOTTOM, TOP))

    def place(value, axis):
        (low, high), (begin, end) = spans[axis], edges[axis]
        return begin + (end - begin) * (math.log10(value) - low) / (high - low)

    drawing.text(16, 30, title, "bold")
    drawing.text(LEFT, HEIGHT - 12, x_name, "small")
    drawing.text(16, TOP - 20, y_name, "small")
    for exponent in ticks(*spans[0]):
        x = place(10.0**exponent, 0)
        drawing.line([(x, edges[1][0]), (x, edges[1][1])], "grid")
        drawing.text(x, HEIGHT - BOTTOM + 26, power(exponent), "small", "middle")
    for exponent in ticks(*spans[1]):
        y = place(10.0**exponent, 1)
        drawing.line([(edges[0][0], y), (edges[0][1], y)], "grid")
        drawing.text(LEFT - 6, y + 7, power(exponent), "small", "end")
    ends = [(place(curve[-1][0], 0), place(curve[-1][1], 1)) for curve in curves.values()]
    names = apart([y for _, y in ends])
    for n, ((name, curve), look) in enumerate(
        zip(curves.items(), LOOKS[: len(curves)], strict=True)
    ):
        path = [(place(x, 0), place(y, 1)) for x, y in curve]
        drawing.line(path, f"curve {look}-line")
        for x, y in path:
            drawing.dot(x, y, look, 6)
        drawing.text(ends[n][0] + 12, names[n] + 7, name, "small")
    return drawing.svg()
