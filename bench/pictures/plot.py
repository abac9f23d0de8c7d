"""Log-log plots for the pages: curves with their names at the right end, powers of ten as grid."""

import math

from drawing import Drawing

WIDTH, HEIGHT = 440, 300
LEFT, TOP, RIGHT, BOTTOM = 66, 52, 106, 44
LOOKS = ("blue", "orange", "green", "grey")
DIGITS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def power(exponent):
    """10⁹; 1 to 10,000 in digits."""
    if 0 <= exponent <= 4:
        return f"{10**exponent:,}"
    return "10" + str(exponent).translate(DIGITS)


class Axis:
    """Whole powers of ten that hold all values, at pixels from @begin to @end."""

    def __init__(self, values, begin, end):
        logs = [math.log10(value) for value in values]
        self.low, self.high = math.floor(min(logs) + 1e-9), math.ceil(max(logs) - 1e-9)
        self.high = max(self.high, self.low + 1)
        self.begin, self.step = begin, (end - begin) / (self.high - self.low)

    def at(self, value):
        return self.begin + (math.log10(value) - self.low) * self.step

    def ticks(self):
        """(pixel, text), at most about 7."""
        every = -(-(self.high - self.low) // 7)
        for exponent in range(self.low, self.high + 1, every):
            yield self.begin + (exponent - self.low) * self.step, power(exponent)


def apart(places, least=15):
    """Moves the pixels of labels down, so that none covers another."""
    moved = {}
    for name, y in sorted(places.items(), key=lambda place: place[1]):
        moved[name] = max(y, max(moved.values(), default=-least) + least)
    return moved


def plot(title, x_name, y_name, curves):
    """@curves: {name: [(x, y), …]}, all above 0. Returns the SVG."""
    points = [point for curve in curves.values() for point in curve]
    x = Axis([point[0] for point in points], LEFT, WIDTH - RIGHT)
    y = Axis([point[1] for point in points], HEIGHT - BOTTOM, TOP)
    d = Drawing(WIDTH, HEIGHT, f"{title}: {y_name} against {x_name}")
    d.text(12, 22, title, "bold")
    d.text(12, 39, y_name, "small")
    for at, text in x.ticks():
        d.line([(at, TOP), (at, HEIGHT - BOTTOM)], "grid")
        d.text(at, HEIGHT - BOTTOM + 16, text, "small", "middle")
    for at, text in y.ticks():
        d.line([(LEFT, at), (WIDTH - RIGHT, at)], "grid")
        d.text(LEFT - 6, at + 4, text, "small", "end")
    d.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_name, "small", "middle")
    ends = apart({name: y.at(max(curve)[1]) for name, curve in curves.items()})
    for (name, curve), look in zip(curves.items(), LOOKS, strict=False):
        at = [(x.at(a), y.at(b)) for a, b in sorted(curve)]
        d.line(at, f"curve {look}-line")
        for point in at:
            d.dot(*point, look, 3)
        d.text(at[-1][0] + 9, ends[name] + 4, name, f"small {look}")
    return d.svg()
