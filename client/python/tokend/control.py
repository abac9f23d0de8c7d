"""An operator's requests, carried out by all processes of a job at the same step.

About once a second the processes find, by one small all-reduce that nobody waits for, whether any
of their daemons shows a request: launched at one call of control(), read at the next, and at which
call the next one is due is agreed on by the same all-reduce. If there is a request, its number
arrives at all of them at the same call, and from there on they go together: one fetches the
request, all look whether they stand at one place, all carry it out, all look whether all did.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

from ._tokend import DONE, FAILED, NOTED, Error

# A process that never calls control() must not stop the others. So the first rounds are waited
# for only so long, and carry no request: who came late to the first one, when the others had given
# up, finds that out at the second.
FIRST_ROUNDS = 2
FIRST_WAIT_S = 10.0
OFF = 1 << 62  # instead of calls to the next look: this process has given up
NOT_ALL = "not every process of its group has called control()"
# from one look to the next, if the calls come fast; an all-reduce takes 50 to 300 µs of a step
EVERY_S = 1.0
EVERY_CALLS = 64  # at most, as steps may become slow
EDITS = ("mix", "skip")
# what must be equal for a request to be carried out, in the order it is gathered
PLACE = ("position", "taken", "fingerprint")


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
    """What an operator asked for, as control() returns it.

    kind       "mix", "skip": carried out already; "checkpoint", "drain", "rescale": for the trainer
               to carry out
    args       a dict: weights and at, samples, tag, world and micro
    acts_from  the position from which the order is another (mix, skip)
    error      why it was not carried out (then nothing was changed, on no rank), or None
    save       the trainer is to save its model and then to call done()
    stop       and then to leave
    """

    def __init__(
        self, control: Control, number: int, kind: str, args: str, ours: bool, writes: bool
    ) -> None:
        self.number, self.kind, self.args = number, kind, _parse(args)
        self.acts_from: int | None = None
        self.error: str | None = None
        self._control, self._ours, self._writes, self._answered = control, ours, writes, False

    @property
    def stop(self) -> bool:
        return self.error is None and self.kind in ("drain", "rescale")

    @property
    def save(self) -> bool:
        return self.error is None and self.kind in ("checkpoint", "drain", "rescale")

    def done(self, text: str = "") -> None:
        """The model is saved: has the daemon write the cursor under the request's tag, if it has
        one, and tells the operator.
        """
        if self._answered:
            return
        client = self._control.client
        try:
            if self._writes and "tag" in self.args:
                path = client.checkpoint(self.args["tag"])
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
        more = (
            f", failed: {self.error}"
            if self.error
            else f", acts from {self.acts_from}"
            if self.acts_from is not None
            else ""
        )
        return f"<tokend.Request {self.number}: {self.kind} {self.args}{more}>"


class Bystander:
    """What Control asks of a client, in a process of the job that reads nothing."""

    DAEMON = 0  # no process that reads has this number

    def attend(self):
        pass

    def request_number(self):
        return 0

    def position(self):
        return 0

    taken = fingerprint = position

    def obey(self, kind, args):
        return 0

    def undo(self):
        pass


class Control:
    """@daemon: a number that is equal for processes with one daemon; a Bystander's is DAEMON."""

    def __init__(self, client: Any, group: Any, daemon: int) -> None:
        self.client, self.group, self.daemon = client, group, daemon
        self.stopping = False
        self._noted = self._handled = 0  # numbers of requests
        self._open = None  # a request that the trainer has not answered
        self._calls = 0  # all processes count the same
        self._next = 0  # the call that launches
        self._launched = 0, 0.0  # the last call that did, and when
        self._work = None  # what was launched
        self._offered = 0  # the number that we launched it with
        self._met = 0  # how often all processes have come by
        self._off = False  # not all did
        self._attend = 0.0  # when to look after the connection again

    def over(self, group):
        """The same among other processes."""
        other = Control(self.client, group, self.daemon)
        other._noted, other._handled = self._noted, self._handled
        return other

    def tell(self, number, outcome, text):
        try:
            # The library cuts it to what a message holds; paths may have bytes that are no text.
            line = text.encode(errors="replace").decode().replace("\n", " ").replace("\0", " ")
            self.client.answer(number, outcome, line)
        except Error as error:  # the operator is told that this rank said nothing
            warnings.warn(f"tokend: request {number}: cannot answer: {error}", stacklevel=3)

    def finish(self, exception=None):
        """What the trainer was given is done, even if it forgot to say so; not if @exception came
        in between.
        """
        request, self._open = self._open, None
        if request is None or request._answered:
            return
        if exception is not None:
            request._answer(
                FAILED, f"the trainer ended with {type(exception).__name__}: {exception}"
            )
            return
        try:
            request.done()
        except Error as error:
            warnings.warn(f"tokend: request {request.number}: {error}", stacklevel=4)

    # ---- a call ----

    def step(self):
        if self._open is not None:
            self.finish()
        now = time.monotonic()
        if now >= self._attend:
            self.client.attend()
            self._attend = now + EVERY_S
        number = self.client.request_number()
        if number == self._handled:
            number = 0
        if self.group is None:
            return self._act_alone(number) if number else None
        if number and number != self._noted:
            self._noted = number
            self.tell(number, *((FAILED, NOT_ALL) if self._off else (NOTED, "")))
        if self._off:
            return None
        request = None
        if self._work is not None:
            if not self._arrived():
                return None
            self._work = None
            greatest, spacing = self.group.greatest()
            if spacing == OFF:
                self._give_up("one of them gave up waiting")
                return None
            self._next = self._launched[0] + spacing
            if greatest:
                request = self._act(greatest)
                number = 0  # whatever it is, it is for the next time
        if self._calls >= self._next and not self.stopping:
            self._launch(number)
        self._calls += 1
        return request

    def _launch(self, number):
        calls, when = self._launched
        now = time.monotonic()
        fits = int((self._calls - calls) * EVERY_S / (now - when)) if self._calls else 1
        self._offered = number if self._met >= FIRST_ROUNDS else 0
        self._work = self.group.launch(self._offered, max(1, min(EVERY_CALLS, fits)))
        self._launched = self._calls, now

    def _arrived(self):
        """Waits for what was launched, like for any collective. The first times not for ever: see
        FIRST_ROUNDS.
        """
        if self._met < FIRST_ROUNDS:
            give_up = time.monotonic() + FIRST_WAIT_S
            while not self._work.is_completed():
                if time.monotonic() >= give_up:
                    # who comes later is told, and does not wait for us
                    self._lost = (self._work, self.group.launch(0, OFF))
                    self._give_up(f"after {FIRST_WAIT_S:g} s {NOT_ALL}")
                    return False
                time.sleep(0.0005)
            self._met += 1
        self._work.wait()
        return True

    def _give_up(self, why):
        self._off = True
        warnings.warn(
            f"tokend: control() is off in this process: {why} ({self.group.size} processes); "
            "training goes on, an operator's requests are not carried out",
            stacklevel=6,
        )

    # ---- carrying out ----

    def _act_alone(self, number):
        number, kind, args, error = self._fetch(number)
        if error or not number:
            return None
        request = Request(self, number, kind, args, True, True)
        request.acts_from, request.error = self._obey(kind, args)
        return self._carried_out(request)

    def _fetch(self, number):
        """The request as it is now: number 0 if it was taken back. It is not looked at again."""
        try:
            fetched, kind, args = self.client.request()
        except Error as error:
            self._handled = number
            warnings.warn(f"tokend: request {number}: cannot fetch it: {error}", stacklevel=5)
            return 0, "", "", str(error)
        self._handled = fetched or number
        return fetched, kind, args, ""

    def _obey(self, kind, args):
        """(acts_from, error)"""
        try:
            return self.client.obey(kind, args), None
        except Error as error:
            return None, str(error)

    def _act(self, greatest):
        client, group = self.client, self.group
        place = [client.position(), client.taken(), client.fingerprint()]
        table = group.gather(
            [self._offered == greatest, self.daemon, self._handled == greatest, *place]
        )
        source = next(i for i, row in enumerate(table) if row[0])
        fetched = group.share(self._fetch(greatest) if source == group.index else None, source)
        number, kind, args, error = fetched
        # the daemon showed it to all its sessions before it gave it to one
        shown = client.request_number()
        if shown in (greatest, number):
            self._handled = shown
        if error or not number:
            return None
        reads = [i for i, row in enumerate(table) if row[1] != Bystander.DAEMON]
        writes = group.index == next((i for i in reads if table[i][1] == self.daemon), None)
        request = Request(self, number, kind, args, shown == number, writes)
        if any(row[2] for row in table):
            request.error = (
                "carried out before by some of the processes, "
                "when the others were not of their group"
            )
        else:
            request.error = self._apart(table, reads)
        if request.error is None:
            request.acts_from, request.error = self._together(kind, args, reads)
        return self._carried_out(request)

    @staticmethod
    def _apart(table, reads):
        for i in reads:
            for field, here, first in zip(PLACE, table[i][3:], table[reads[0]][3:], strict=True):
                if here != first:
                    return (
                        f"{field}: {here} at process {i}, {first} at process {reads[0]}: the ranks "
                        "are not at one place, "
                        "all of them must call control() equally often and at the same step"
                    )
        return None

    def _together(self, kind, args, reads):
        """Carries it out on all or on none: (acts_from, error)."""
        client, group = self.client, self.group
        acts_from, error = self._obey(kind, args)
        table = group.gather([error is None, client.fingerprint(), acts_from or 0])
        failed = [i for i in reads if not table[i][0]]
        differ = [i for i in reads if table[i] != table[reads[0]]]
        if not failed and not differ:
            return table[reads[0]][2], None
        first = failed[0] if failed else differ[0]
        why = group.share(
            error
            or f"its edit of the cursor gave another one than process {reads[0]}'s: "
            "do the daemons' configs differ?",
            first,
        )
        if len(failed) < len(reads):
            why = f"process {first} of {group.size}: {why}"
            if error is None and kind in EDITS:
                client.undo()
        return None, why

    def _carried_out(self, request):
        if request.error is not None:
            request._answer(FAILED, request.error)
        elif request.save:
            self._open = request
            self.stopping = self.stopping or request.stop
        else:
            request._answer(DONE, f"acts from {request.acts_from}")
        return request
