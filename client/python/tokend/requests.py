"""An operator's requests, carried out by all processes of a job at the same step.

In every k-th call of control(), about once a second, a small all-reduce says whether one of their
daemons has a request, agrees on k, and compares positions. A request's number so reaches all
processes in the same call. From then on they act together: one fetches the request, all compare
their positions, all carry it out, and all check that all did.
"""

from __future__ import annotations

import os
import time
from typing import Any

from . import phrases
from .errors import Error

NOTED, DONE, FAILED = 1, 2, 3  # enum tokend_outcome
NOT_DONE = (
    "not handled: the training loop went on without request.done(), so the model may not be saved; "
    "if control() returns a request whose save is true, save the model, then call its done() in "
    "all processes"
)
EVERY_S = 1.0  # between two rounds; an all-reduce takes 50 to 300 µs of a step
EVERY_CALLS = 64  # at most, because steps may become slow
SAVES = ("checkpoint", "drain", "rescale")  # carried out by the trainer
PLACE = ("position", "taken", "fingerprint")  # must be equal on all


def _parse(args: str) -> dict[str, Any]:
    """ "KEY VALUE" lines as a dict; weights by name."""
    parsed: dict[str, Any] = {}
    for line in args.splitlines():
        key, _, value = line.partition(" ")
        if key == "weight":
            weight, _, name = value.partition(" ")
            parsed.setdefault("weights", {})[name] = float(weight)
        else:
            parsed[key] = int(value) if value.isdigit() and key != "tag" else value
    return parsed


class Request:
    """An operator's request, as Loader.control() returns it. It is true only if it asks for a save.

    number     its number in the daemon
    kind       "mix" or "skip": already carried out. "checkpoint", "drain" or "rescale": for the
               trainer to carry out
    args       a dict: weights and at (mix), samples (skip), tag (checkpoint), world and micro
               (rescale)
    acts_from  the position from which the order differs (mix, skip), or None
    error      why it was not carried out, or None. Nothing was changed then, on any rank
    save       True: save the model, then call done()
    stop       True: then leave the training loop
    """

    def __init__(
        self, control: Control, number: int, kind: str, args: str, ours: bool, writes: bool
    ) -> None:
        """@ours: this process's daemon has it. @writes: this process has the cursor stored."""
        self.number, self.kind, self.args = number, kind, _parse(args)
        self.acts_from: int | None = None
        self.error: str | None = None
        self._control, self._ours, self._writes, self._answered = control, ours, writes, False

    @property
    def stop(self) -> bool:
        return self.error is None and self.kind in ("drain", "rescale")

    @property
    def save(self) -> bool:
        return self.error is None and self.kind in SAVES

    def __bool__(self) -> bool:
        return self.save

    def done(self, text: str = "") -> None:
        """Reports to the operator that the model is saved, with one line of @text, such as the path
        of its checkpoint. Call it before the next control().

        If the request has a tag, the daemon first writes the cursor under it. RefusedError or
        ConnectError: it could not; the operator gets the reason.
        """
        if self._answered:
            return
        try:
            if self._writes and "tag" in self.args:
                path = self._control.client.checkpoint(self.args["tag"])
                text = f"{text}, cursor in {path}" if text else f"cursor in {path}"
        except Error as error:
            self.error = str(error)
            self._answer(FAILED, self.error)
            raise
        self._answer(DONE, text or "saved")

    def _answer(self, outcome: int, text: str) -> None:
        self._answered = True
        if self._ours:
            self._control.tell(self.number, outcome, text)

    def __repr__(self) -> str:
        more = "" if self.acts_from is None else f", acts from {self.acts_from}"
        more = f", failed: {self.error}" if self.error else more
        return f"<tokend.Request {self.number}: {self.kind} {self.args}{more}>"


class Control:
    def __init__(self, client: Any, group: Any) -> None:
        self.client = client
        # names this process's daemon, also before a private one is started again
        self._daemon = [os.uname().nodename, os.path.realpath(client.shape()["socket"])]
        self._noted = self._handled = 0  # numbers of requests
        self._open: Request | None = None  # the trainer has not answered it yet
        self._attend = 0.0  # time of the next attend()
        self.begin(group)

    def begin(self, group: Any) -> None:
        """Begins with another group, or anew after a drain."""
        self.group = group
        self.stopping = self._goes_on = False  # although it is stopping
        self._calls = self._next = 0  # equal in all processes; the call of the next round
        self._round = 0, time.monotonic()  # call and time of the last round
        self._apart_before = False  # has warned that positions differ

    def tell(self, number: int, outcome: int, text: str) -> None:
        try:
            # The library cuts it to a message's length. Paths may have bytes that are not UTF-8.
            line = text.encode(errors="replace").decode().replace("\n", " ").replace("\0", " ")
            self.client.answer(number, outcome, line)
        except Error as error:  # tokctl reports that this rank did not answer
            phrases.warn(f"request {number}: cannot answer: {error}")

    def finish(self, exception: BaseException | None = None) -> None:
        """Answers the open request, to which the trainer did not say done(): failed."""
        request, self._open = self._open, None
        if request is None or request._answered:
            return
        why = NOT_DONE
        if exception is not None:
            why = f"the trainer ended with {type(exception).__name__}: {exception}"
        request._answer(FAILED, why)

    # ---- a call ----

    def step(self) -> Request | None:
        self.finish()
        now = time.monotonic()
        if now >= self._attend:
            self.client.attend()
            self._attend = now + EVERY_S
        number = self.client.request_number
        if number == self._handled:
            number = 0
        if self.group is None:
            return self._act_alone(number) if number else None
        if number and number != self._noted:
            self._noted = number
            self.tell(number, NOTED, "")
        if self.stopping and not self._goes_on:
            self._goes_on = True
            phrases.warn(
                "the loop goes on after a drain or rescale; save, and leave the loop, when "
                "loader.should_stop is true"
            )
        greatest = self._ask(number) if self._calls >= self._next else 0
        self._calls += 1
        return self._act(greatest, number) if greatest else None

    def _ask(self, number: int) -> int:
        """A round. Returns the greatest number of a request."""
        calls, when = self._round
        self._round = self._calls, time.monotonic()
        fits = int((self._calls - calls) * EVERY_S / max(self._round[1] - when, 1e-6))
        here, spacing = self.client.position, max(1, min(EVERY_CALLS, fits))
        greatest, spacing, last, first = self.group.greatest(number, spacing, here, -here)
        if last != -first and not self._apart_before:
            self._apart_before = True
            phrases.warn(
                f"the ranks are at positions {-first} to {last}, so a resume from one rank's state "
                "loses or repeats rows of the others; take equally many batches in every process, "
                "also for evaluation or logging in one of them, and call control() equally often"
            )
        self._next = self._calls + spacing
        return int(greatest)

    # ---- carrying out ----

    def _act_alone(self, number: int) -> Request | None:
        number, kind, args = self._fetch(number)
        if not number:
            return None
        request = Request(self, number, kind, args, True, True)
        request.acts_from, request.error = self._obey(kind, args)
        return self._carried_out(request)

    def _fetch(self, number: int) -> tuple[int, str, str]:
        """Fetches the request: (number, kind, args); number 0: it was cancelled, or cannot be
        fetched. It is handled then, in any case.
        """
        try:
            fetched, kind, args = self.client.request()
        except Error as error:
            self._handled = number
            phrases.warn(f"request {number}: cannot fetch it: {error}")
            return 0, "", ""
        self._handled = fetched or number
        return fetched, kind, args

    def _obey(self, kind: str, args: str) -> tuple[int | None, str | None]:
        """Returns (acts_from, error)."""
        if kind in SAVES:
            return None, None
        try:
            return self.client.obey(kind, args), None
        except Error as error:
            return None, str(error)

    def _act(self, greatest: int, offered: int) -> Request | None:
        client, group = self.client, self.group
        place = {field: getattr(client, field) for field in PLACE}
        seen = {"offered": offered == greatest, "handled": self._handled == greatest}
        table = group.gather({**place, **seen, "daemon": self._daemon})
        source = next(i for i, row in enumerate(table) if row["offered"])
        fetched = group.gather(self._fetch(greatest) if source == group.index else None)[source]
        number, kind, args = fetched
        # the daemon announces it to all its sessions before one can fetch it
        shown = client.request_number
        if shown in (greatest, number):
            self._handled = shown
        if not number:
            return None
        daemons = [row["daemon"] for row in table]
        writes = group.index == daemons.index(self._daemon)
        request = Request(self, number, kind, args, shown == number, writes)
        if any(row["handled"] for row in table):
            request.error = (
                "some of the processes have carried it out before, in another group; "
                "send a new request"
            )
        else:
            request.error = self._apart(table)
        if request.error is None:
            request.acts_from, request.error = self._together(kind, args)
        return self._carried_out(request)

    @staticmethod
    def _apart(table: list[Any]) -> str | None:
        for i, row in enumerate(table):
            for field in PLACE:
                if row[field] != table[0][field]:
                    return (
                        f"{field}: {row[field]} at process {i} differs from {table[0][field]} at "
                        "process 0; all ranks must call control() equally often, at the same steps"
                    )
        return None

    def _together(self, kind: str, args: str) -> tuple[int | None, str | None]:
        """Carries it out on all or on none. Returns (acts_from, error)."""
        client, group = self.client, self.group
        acts_from, error = self._obey(kind, args)
        shards = 0 if kind in SAVES else client.contents
        table = group.gather([error, client.fingerprint, shards, acts_from])
        wrong = [i for i, row in enumerate(table) if row[0] is not None or row != table[0]]
        if not wrong:
            return acts_from, None
        if error is None and kind not in SAVES:
            client.undo()
        why = table[wrong[0]][0] or (
            "its edited cursor, or the shards that it serves, are not those of process 0; compare "
            "the configs and shards of the daemons"
        )
        return None, f"process {wrong[0]} of {group.size}: {why}"

    def _carried_out(self, request: Request) -> Request:
        if request.error is not None:
            request._answer(FAILED, request.error)
        elif request.save:
            self._open = request
            self.stopping |= request.stop
        else:
            request._answer(DONE, f"acts from {request.acts_from}")
        return request
