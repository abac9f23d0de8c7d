"""Reads what the trainers noted of their steps, and draws the loss."""

import json
import math
import pathlib
import sys
from collections import defaultdict

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "bench" / "pictures"))

from drawing import Drawing  # noqa: E402


def read(path):
    """The lines of a rank's record. An incomplete last line, of a killed trainer, is dropped."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


class Attempt:
    """One launch of the trainers: the records of all ranks, by step."""

    def __init__(self, directory, name, world):
        ranks = [read(directory / f"{name}-{rank}.jsonl") for rank in range(world)]
        self.world, self.start = world, ranks[0][0]["start"]
        assert all(
            lines[0]["start"] == self.start and lines[0]["world"] == world for lines in ranks
        )
        self.steps = defaultdict(list)  # step → one entry per rank
        for lines in ranks:
            for line in lines:
                if "step" in line:
                    self.steps[line["step"]].append(line)
        # the last lines of ranks that were not killed
        self.last = [lines[-1] for lines in ranks if "valid" in lines[-1]]


def surviving(attempts):
    """(step, attempt) of each step in the final model. A restart undoes the steps after its
    checkpoint.
    """
    for attempt, following in zip(attempts, [*attempts[1:], None]):
        end = following.start if following else max(attempt.steps) + 1
        for step in range(attempt.start, end):
            yield step, attempt


def losses(attempts):
    """(step, mean loss of the ranks) of the steps in the final model, and of the steps that each
    restart undid.
    """

    def mean(attempt, step):
        return sum(entry["loss"] for entry in attempt.steps[step]) / len(attempt.steps[step])

    kept = [(step, mean(attempt, step)) for step, attempt in surviving(attempts)]
    undone = [
        [(step, mean(attempt, step)) for step in sorted(attempt.steps) if step >= following.start]
        for attempt, following in zip(attempts, attempts[1:])
    ]
    return kept, [tail for tail in undone if tail]


def text_plot(curve, letters, width=68, height=11):
    """The curve in characters, with letters ({step: letter}) below it."""
    last = curve[-1][0] + 1
    columns = defaultdict(list)
    for step, loss in curve:
        columns[step * width // last].append(loss)
    means = {column: sum(values) / len(values) for column, values in columns.items()}
    top, bottom = max(means.values()), min(means.values())
    grid = [[" "] * width for _ in range(height)]
    for column, mean in means.items():
        grid[round((top - mean) / max(top - bottom, 1e-9) * (height - 1))][column] = "*"
    lines = []
    for number, row in enumerate(grid):
        label = (
            f"{top - (top - bottom) * number / (height - 1):5.2f}" if number % 5 == 0 else " " * 5
        )
        lines.append(f"  {label} | {''.join(row).rstrip()}")
    axis = [" "] * width
    for step, letter in letters.items():
        axis[min(step * width // last, width - 1)] = letter
    lines.append("        +" + "-" * (width + 1))
    lines.append("          " + "".join(axis).rstrip())
    return "\n".join(lines)


def picture(path, curve, undone, valid, events):
    """Draws the loss, the steps undone by a kill, and the events ({step: text})."""
    d = Drawing(900, 380, "Loss of the training run; the kills leave no trace")
    left, right, top, bottom = 50, 880, 50, 330
    steps = curve[-1][0] + 1
    high, low = max(loss for _, loss in curve), min(loss for _, loss in [*curve, *valid])
    high, low = math.ceil(high), math.floor(low)

    def at(step, loss):
        x = left + step * (right - left) / steps
        return x, bottom - (loss - low) * (bottom - top) / (high - low)

    for loss in range(low, high + 1):
        d.line([at(0, loss), at(steps, loss)], "grid")
        d.text(left - 8, at(0, loss)[1] + 4, str(loss), "small", "end")
    for step in range(0, steps + 1, 50):
        d.text(at(step, 0)[0], bottom + 18, str(step), "small", "middle")
    d.text((left + right) / 2, bottom + 38, "step", "small", "middle")
    d.text(left, 24, "loss in nats per token", "bold")
    for step, text in events.items():
        x = at(step, 0)[0]
        d.line([(x, top - 8), (x, bottom)], "event")
        d.text(x + 5, top + 16, text)
    values = [loss for _, loss in curve]
    means = [
        sum(part) / len(part) for part in (values[max(0, n - 19) : n + 1] for n in range(steps))
    ]
    d.line([at(*point) for point in curve], "faint")
    d.line([at(step, mean) for (step, _), mean in zip(curve, means)], "curve")
    for tail in undone:
        d.line([at(*point) for point in tail], "undone")
    for step, loss in valid:
        d.dot(*at(step, loss), "green")
    legend = (("curve", "mean of 20 steps"), ("undone", "undone by the kill, then trained again"))
    for n, (look, text) in enumerate(legend):
        d.line([(380 + n * 170, 20), (404 + n * 170, 20)], look)
        d.text(410 + n * 170, 24, text, "small")
    d.dot(792, 20, "green")
    d.text(802, 24, "held-out text", "small")
    path.write_text(d.svg())
