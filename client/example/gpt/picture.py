"""Draws the loss of the run."""

import math
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "bench" / "pictures"))

from drawing import Drawing  # noqa: E402

LEFT, RIGHT, TOP, BOTTOM = 50, 880, 50, 330


def draw(path, kept, undone, events):
    """@kept: the steps of the final model, @undone: those that a kill undid, @events: by step."""
    d = Drawing(900, 380, "Loss of the training run; the kills leave no trace")
    losses, steps = [step["loss"] for step in kept], len(kept)
    high, low = math.ceil(max(losses)), math.floor(min(losses))

    def at(step, loss):
        x = LEFT + step * (RIGHT - LEFT) / steps
        return x, BOTTOM - (loss - low) * (BOTTOM - TOP) / (high - low)

    for loss in range(low, high + 1):
        d.line([at(0, loss), at(steps, loss)], "grid")
        d.text(LEFT - 8, at(0, loss)[1] + 4, str(loss), "small", "end")
    for step in range(0, steps + 1, 50):
        d.text(at(step, 0)[0], BOTTOM + 18, str(step), "small", "middle")
    d.text((LEFT + RIGHT) / 2, BOTTOM + 38, "step", "small", "middle")
    d.text(LEFT, 24, "loss in nats per token", "bold")
    for step, text in events.items():
        x = at(step, 0)[0]
        d.line([(x, TOP - 8), (x, BOTTOM)], "event")
        d.text(x + 5, TOP + 16, text)
    smooth = [losses[max(0, n - 19) : n + 1] for n in range(steps)]
    d.line([at(*point) for point in enumerate(losses, 1)], "faint")
    d.line([at(n, sum(part) / len(part)) for n, part in enumerate(smooth, 1)], "curve")
    d.line([at(step["step"], step["loss"]) for step in undone], "undone")
    legend = (("curve", "mean of 20 steps"), ("undone", "undone by the kill, then trained again"))
    for n, (look, text) in enumerate(legend):
        d.line([(480 + n * 170, 20), (504 + n * 170, 20)], look)
        d.text(510 + n * 170, 24, text, "small")
    path.write_text(d.svg())
