"""An operator's requests, carried out by all processes of a job at the same step.

About once a second the processes ask each other whether one of their daemons has a request, by a
small all-reduce that nobody waits for. It is launched in one call of control() and read in the
next. The same all-reduce agrees on the call that launches the next one, and compares positions.

A request's number reaches all processes in the same call. From then on they act together: one
fetches the request, all compare their positions, all carry it out, and all check that all did.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

from . import callers, phrases
from ._tokend import DONE, FAILED, NOTED, Error

# A process that never calls control() must not stop the others, so the wait for the first rounds
# is limited. They carry no request: a process that comes to the first round after the others have
# given up notices it in the second.
FIRST_ROUNDS = 2
FIRST_WAIT_S = 10.0
OFF = 1 << 62  # in place of the calls until the next round: this process has given up
NOWHERE = -1 << 62  # in place of a position: this process reads nothing, or has given up
NOT_DONE = (
    "not handled: the training loop went on without request.done(), so the model may not be saved; "
    "if control() returns a request whose save is true, save the model, then call its done() in "
    "all processes"
)
NOT_ALL = "not every process of its group has called control()"
# between two rounds; an all-reduce takes 50 to 300 µs of a step
EVERY_S = 1.0
EVERY_CALLS = 64  # at most, because steps may become slow
SAVES = ("checkpoint", "drain", "rescale")  # carried out by the trainer
PLACE = ("position", "taken", "fingerprint")  # must be equal on all; in the order of gather()


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
    """An operator's request, as Loader.control() returns it.

    It is true only if it asks for a save.

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
        self.number, self.kind, self.args = number, kind, _parse(args)
        self.acts_from: int | None = None
        self.error: str | None = None
        self._control, self._ours, self._writes, self._answered = control, ours, writes, False

    @property
    def stop(self) -> bool:
        """True for a drain or a rescale: leave the training loop."""
        return self.error is None and self.kind in ("drain", "rescale")

    @property
    def save(self) -> bool:
        """True for a checkpoint, a drain or a rescale: save the model, then call done()."""
        return self.error is None and self.kind in SAVES

    def __bool__(self) -> bool:
        """True if the model is to be saved: what is carried out is not mistaken for that."""
        return self.save

    def done(self, text: str = "") -> None:
        """Reports to the operator that the model is saved.

        Call it before the next control(). If the request has a tag, the daemon first writes the
        cursor under it. A second call does nothing.

        Args:
            text: one line for the operator, such as the path of the model's checkpoint.

        Raises:
            RefusedError, ConnectError: the daemon could not write the cursor. The operator gets
                the reason.
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
    """The client of Control in a process of the job that reads nothing."""

    DAEMON = 0  # of no process that reads

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
    """@daemon: a number of the daemon, equal for all its processes; a Bystander's is DAEMON."""

    def __init__(self, client: Any, group: Any, daemon: int) -> None:
        self.client, self.group, self.daemon = client, group, daemon
        self.stopping = False
        self._goes_on = 0  # the call that shows that the loop does not stop
        self._noted = self._handled = 0  # numbers of requests
        self._open = None  # the request that the trainer has not answered yet
        self._calls = 0  # equal in all processes
        self._next = 0  # the call that launches the next round
        self._launched = 0, 0.0  # call and time of the last launch
        self._work = None  # the launched all-reduce
        self._offered = 0  # the request's number in it
        self._met = 0  # rounds that all processes came to
        self._apart_before = False  # has warned that positions differ
        self._off = False  # given up
        self._attend = 0.0  # time of the next attend()

    def over(self, group):
        """Returns a Control of the same client for another group."""
        other = Control(self.client, group, self.daemon)
        other._noted, other._handled = self._noted, self._handled
        return other

    def tell(self, number, outcome, text):
        try:
            # The library cuts it to a message's length. Paths may have bytes that are not UTF-8.
            line = text.encode(errors="replace").decode().replace("\n", " ").replace("\0", " ")
            self.client.answer(number, outcome, line)
        except Error as error:  # tokctl reports that this rank did not answer
            warnings.warn(
                f"tokend: request {number}: cannot answer: {error}",
                stacklevel=callers.users_level(),
            )

    def finish(self, exception=None):
        """Answers the open request, to which the trainer did not say done(): failed."""
        request, self._open = self._open, None
        if request is None or request._answered:
            return
        why = NOT_DONE
        if exception is not None:
            why = f"the trainer ended with {type(exception).__name__}: {exception}"
        request._answer(FAILED, why)

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
            greatest, spacing, last, first = self.group.greatest()
            if spacing == OFF:
                self._give_up("one of them gave up waiting")
                return None
            if NOWHERE < last != -first and not self._apart_before:
                self._warn_apart(-first, last)
            self._next = self._launched[0] + spacing
            if greatest:
                request = self._act(greatest)
                number = 0  # a newer one is for the next round
        if self.stopping and self._calls == self._goes_on:
            warnings.warn(
                "tokend: the loop goes on after a drain or rescale, so requests are taken again; "
                "save, and leave the loop, when loader.should_stop is true",
                stacklevel=callers.users_level(),
            )
        if self._calls >= max(self._next, self._goes_on):
            self._launch(number)
        self._calls += 1
        return request

    def _launch(self, number):
        calls, when = self._launched
        now = time.monotonic()
        fits = int((self._calls - calls) * EVERY_S / (now - when)) if self._calls else 1
        self._offered = number if self._met >= FIRST_ROUNDS else 0
        here = NOWHERE, NOWHERE
        if self.daemon != Bystander.DAEMON:
            here = self.client.position(), -self.client.position()
        self._work = self.group.launch(self._offered, max(1, min(EVERY_CALLS, fits)), *here)
        self._launched = self._calls, now

    def _arrived(self):
        """Waits for the launched all-reduce; in the first rounds for FIRST_WAIT_S at most."""
        if self._met < FIRST_ROUNDS:
            give_up = time.monotonic() + FIRST_WAIT_S
            while not self._work.is_completed():
                if time.monotonic() >= give_up:
                    # processes that come later read this and do not wait for us
                    self._lost = (self._work, self.group.launch(0, OFF, NOWHERE, NOWHERE))
                    self._give_up(f"after {FIRST_WAIT_S:g} s {NOT_ALL}")
                    return False
                time.sleep(0.0005)
            self._met += 1
        self._work.wait()
        return True

    def _give_up(self, why):
        self._off = True
        warnings.warn(
            f"tokend: control() is off in this process: {why} ({self.group.size} processes). "
            "Training continues; operators' requests fail. Call control() in every process, "
            "after every step",
            stacklevel=callers.users_level(),
        )

    def _warn_apart(self, first, last):
        self._apart_before = True
        warnings.warn(
            f"tokend: the ranks are at positions {first} to {last}, so a resume from one rank's "
            "state loses or repeats rows of the others; take equally many batches in every "
            "process, also for evaluation or logging in one of them, and call control() equally "
            "often",
            stacklevel=callers.users_level(),
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
        """Fetches the request: (number, kind, args, error); number 0: it was taken back. It is
        handled then, in any case.
        """
        try:
            fetched, kind, args = self.client.request()
        except Error as error:
            self._handled = number
            warnings.warn(
                f"tokend: request {number}: cannot fetch it: {error}",
                stacklevel=callers.users_level(),
            )
            return 0, "", "", str(error)
        self._handled = fetched or number
        return fetched, kind, args, ""

    def _obey(self, kind, args):
        """Returns (acts_from, error)."""
        if kind in SAVES:
            return None, None
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
        # the daemon announces it to all its sessions before one can fetch it
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
                "some of the processes have carried it out before, in another group; "
                "send a new request"
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
                        f"{field}: {here} at process {i} differs from {first} at process "
                        f"{reads[0]}; {phrases.SAME_PLACE}"
                    )
        return None

    def _together(self, kind, args, reads):
        """Carries it out on all or on none. Returns (acts_from, error)."""
        client, group = self.client, self.group
        acts_from, error = self._obey(kind, args)
        table = group.gather([error is None, client.fingerprint(), acts_from or 0])
        failed = [i for i in reads if not table[i][0]]
        differ = [i for i in reads if table[i] != table[reads[0]]]
        if not failed and not differ:
            return None if kind in SAVES else table[reads[0]][2], None
        first = failed[0] if failed else differ[0]
        why = group.share(
            error
            or f"its edited cursor differs from that of process {reads[0]}; compare the configs "
            "of the daemons",
            first,
        )
        if len(failed) < len(reads):
            why = f"process {first} of {group.size}: {why}"
            if error is None and kind not in SAVES:
                client.undo()
        return None, why

    def _carried_out(self, request):
        if request.error is not None:
            request._answer(FAILED, request.error)
        elif request.save:
            self._open = request
            if request.stop:
                self.stopping, self._goes_on = True, self._calls + EVERY_CALLS
        else:
            request._answer(DONE, f"acts from {request.acts_from}")
        return request
