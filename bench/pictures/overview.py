"""Draws overview.svg: python bench/pictures/overview.py > bench/pictures/overview.svg"""

from drawing import Drawing

RANKS = 4
ROW = 52  # pixels from rank to rank


def overview():
    d = Drawing(900, 366, "tokend: shards, daemon, rings, ranks, and the cursor in the checkpoint")
    d.text(20, 30, "token shards", "bold")
    for n, (name, weight, look) in enumerate(
        [("web", "0.7", "blue"), ("code", "0.2", "green"), ("math", "0.1", "orange")]
    ):
        y = 62 + n * 72
        for sheet in (8, 4, 0):
            d.box(20 + sheet, y + sheet, 96, 40, radius=3)
        d.box(28, y + 14, 12, 12, look, 2)
        d.text(48, y + 25, f"{name}  {weight}")
        d.line([(130, y + 24), (186, 140 + n * 14)], arrow=True)
    d.text(20, 292, "flat, .npy, Megatron,", "small")
    d.text(20, 307, "MDS, Arrow, zstd, …", "small")

    d.box(150, 12, 520, 266, "frame", 10)
    d.text(166, 34, "node 1", "bold")
    d.box(188, 62, 154, 190)
    d.text(265, 88, "tokend", "bold", "middle")
    d.text(265, 106, "one daemon per node", "small", "middle")
    d.text(265, 140, "shuffles and mixes:", anchor="middle")
    d.text(265, 158, "sample = f(position)", "small", "middle")
    d.text(265, 192, "reads ahead", anchor="middle")
    d.text(265, 210, "no index is built", "small", "middle")

    d.text(418, 50, "rings in shared memory", "small", "middle")
    looks = ["blue", "blue", "green", "blue", "orange", "blue", "green", "blue"]
    for rank in range(RANKS):
        y = 66 + rank * ROW
        d.line([(342, y + 14), (362, y + 14)], arrow=True)
        for slot in range(5):
            d.box(368 + slot * 20, y, 18, 28, radius=2)
            if slot >= (1, 0, 2, 1)[rank]:
                d.box(372 + slot * 20, y + 9, 10, 10, looks[(slot + rank * 3) % 8], 2)
        d.line([(472, y + 14), (506, y + 14)], arrow=True)
        d.box(512, y - 4, 142, 36)
        d.text(583, y + 19, f"trainer, rank {rank}", anchor="middle")

    for y, ends, text in ((140, (674, 718), "save"), (186, (718, 676), "resume")):
        d.line([(ends[0], y), (ends[1], y)], arrow=True)
        d.text(696, y - 8, text, "small", "middle")
    d.box(722, 92, 160, 132)
    d.text(802, 116, "your checkpoint", "bold", "middle")
    d.text(802, 142, "model", anchor="middle")
    d.text(802, 162, "optimizer", anchor="middle")
    d.box(746, 176, 112, 34, "blue")
    d.parts.append(
        '<text x="802" y="197" text-anchor="middle" style="fill:#fff">cursor, 191 B</text>'
    )

    d.box(150, 294, 520, 56, "frame", 10)
    d.text(166, 318, "node 2, 3, …", "bold")
    d.text(166, 338, "same config, same shards; the daemons do not communicate", "small")
    d.text(802, 244, "resume on any number of ranks:", "small", "middle")
    d.text(802, 259, "nothing repeated, nothing lost", "small", "middle")
    return d.svg()


if __name__ == "__main__":
    print(overview(), end="")
