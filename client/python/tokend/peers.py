"""Which of the processes that read the same rows this one is, where a trainer names the data rank
alone.
"""

from . import group as groups


def among_all(rank):
    """(peer, group): the number of this process among those with its data @rank, and a gloo group
    of all; (0, None) if alone.

    Called by all processes of torch.distributed together.
    """
    group = groups.of_all()
    if group is None:
        return 0, None
    together = groups.Group(group)
    ranks = [row[0] for row in together.gather([rank])]
    return ranks[: together.index].count(rank), group
