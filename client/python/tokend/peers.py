"""Finds this process's peer number for trainers that know only the data rank."""

from . import group as groups


def among_all(rank):
    """Returns (peer, group): the number of this process among those with data rank @rank, and a
    group of all processes; (0, None) if there is only one.

    All processes call this together.
    """
    group = groups.of_all()
    if group is None:
        return 0, None
    together = groups.over(group)
    ranks = [row[0] for row in together.gather([rank])]
    return ranks[: together.index].count(rank), group
