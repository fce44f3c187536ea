"""Clients that send prompts with common prefixes under a few names, used again and again."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raydix.ids import AskingId, RequestId
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import (
    AbortRequest,
    ExpectRequest,
    PrefetchPrompt,
    SubmitRequest,
)
from raydix.runtime.messages.plan import DeviceSampling
from tests.simulation.client_links import CUT_OFF, Answer, ClientLink
from tests.simulation.grammars import draw_grammar, may_fail
from tests.simulation.hints import with_pin, with_retention
from tests.simulation.modelled_tokens import VOCABULARY

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.workload import Workload

_HINTER = "hinter"
_REFUSED = "BadRequest"
HANDED_OVER = "handed_over"
_RETRY_S = 0.03


@dataclass(frozen=True, slots=True)
class Foretold:
    """An engine was told over this link, by this asking, of what it is to go on with."""

    link: ClientLink
    asking: AskingId


class RandomClients:
    """Owns: what is still to be sent, and which names are free.

    A name is free once its request's last delta was heard, or as soon as its abort was sent, and
    then often used at once. A client whose link has closed connects anew and sends again what was
    open.
    """

    def __init__(self, cluster: Cluster, workload: Workload, number: int = 0) -> None:
        """Be the clients of the engine with this number: all engines know the same prefixes."""
        self._cluster = cluster
        self._workload = workload
        self._random = random.Random(workload.seed + 1)
        self._num_pending = workload.num_requests
        self._num_prompts = 0
        self._num_sent = 0
        self._num_names = 0
        self._free: dict[str, list[RequestId]] = {name: [] for name in ("a", "b", _HINTER)}
        self._named: dict[Answer, RequestId] = {}
        """Open askings by which a name is taken."""
        self._next = self
        """The clients of the engine where what was begun at this one goes on."""
        self._foretold: dict[Answer, Foretold] = {}
        """How that engine was told of what it is to go on with."""
        self._prefixes = [
            self._tokens(self._random, self._random.choice(workload.prefix_tokens))
            for _ in range(workload.num_prefixes)
        ]
        self._name = f"{workload.seed}" if number == 0 else f"{workload.seed} {number}"
        """What draws of its own are seeded with."""
        if number:
            self._random = random.Random(self._name)
        cluster.on_ending = self._on_ending
        for _ in range(workload.num_requests):
            cluster.after(self._random.uniform(0, workload.span_s), self._send_new)

    def hands_over_to(self, others: RandomClients) -> None:
        """Let requests go on with these clients' engine once they have their first token."""
        self._next = others

    def are_done(self) -> bool:
        """Everything was sent and has ended, or there is nobody any more to send it to."""
        if self._cluster.is_ended:
            return all(answer.ending is not None for answer in self._cluster.history)
        return not self._num_pending

    def lose_one(self) -> None:
        """The second client vanishes; what it sends later is sent by a new one of the same name."""
        if self._cluster.scheduler.is_up:
            self._cluster.num_faults["client lost"] += 1
            self._cluster.client("b").vanish()

    def flap_one(self) -> None:
        """A client's link breaks."""
        if self._cluster.scheduler.is_up:
            self._cluster.num_faults["client link broken"] += 1
            self._cluster.client(self._random.choice(["a", "b", _HINTER])).link.close()

    def rest_one(self, duration_s: float) -> None:
        """A client stops reading."""
        if self._cluster.scheduler.is_up:
            self._cluster.num_faults["client rested"] += 1
            self._cluster.client(self._random.choice("ab")).rest(duration_s)

    def _tokens(self, draw: random.Random, num_tokens: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(num_tokens)]

    def _send_new(self, client: str | None = None) -> None:
        # Drawn apart, so that what is asked for does not depend on the hints.
        draw = random.Random(f"{self._name} {self._num_prompts}")
        self._num_prompts += 1
        if draw.random() < self._workload.hint_fraction:
            self._send_hint(draw)

        suffix = self._tokens(
            self._random, self._random.randrange(self._workload.max_suffix_tokens + 1)
        )
        prompt = self._next_prefix() + suffix
        is_salted = self._random.random() < self._workload.salt_fraction
        salt = self._random.choice(["salt", "pepper"]) if is_salted else None
        self._send(prompt[: self._workload.settings.max_model_len - 1], salt, client)

    def _next_prefix(self) -> list[int]:
        if self._workload.comes_in_turns:
            return self._prefixes[self._num_prompts % len(self._prefixes)]
        return self._random.choice(self._prefixes)

    def _send_hint(self, draw: random.Random) -> None:
        if not self._cluster.scheduler.is_up:
            return
        tokens = draw.choice(self._prefixes) + self._tokens(draw, draw.randrange(20))
        link = self._cluster.client(_HINTER)
        name = self._take_name(_HINTER)
        hint = PrefetchPrompt(
            asking=link.next_asking(), request_id=name, token_ids=int32_array(tokens)
        )
        hint = with_pin(hint, link, self._workload, self._cluster, draw)
        answer = self._cluster.prefetch(hint, _HINTER)
        self._named[answer] = name
        if draw.random() < self._workload.abort_fraction:
            self._cluster.after(draw.uniform(0, 0.4), lambda: self._end_early(answer))

    def _send(self, prompt: list[int], cache_salt: str | None, client: str | None = None) -> None:
        workload, draw = self._workload, self._random
        client = client or draw.choice("ab")
        message = SubmitRequest(
            asking=AskingId(0),
            request_id=RequestId(""),
            token_ids=int32_array(prompt),
            sampling=DeviceSampling(seed=0),
            max_tokens=draw.choice([None, *range(1, workload.max_output_tokens)]),
            stop_token_ids=(draw.randrange(VOCABULARY),)
            if draw.random() < workload.stop_fraction
            else (),
            priority=draw.randrange(-2, 3) if draw.random() < workload.priority_fraction else 0,
            cache_salt=cache_salt,
            session_id=draw.choice([None, "s"]),
            routing_key=[None, "a", "b"][sum(prompt) % 3],
            deadline_s=draw.uniform(0.05, 1.0)
            if draw.random() < workload.deadline_fraction
            else None,
        )
        self._submit(client, message)

    def _submit(
        self, client: str, message: SubmitRequest, foretold: Foretold | None = None
    ) -> None:
        """Send a message under a free name; once the Scheduler is up, if it is not."""
        if self._cluster.is_ended:
            return
        if not self._cluster.scheduler.is_up:
            self._cluster.after(_RETRY_S, lambda: self._submit(client, message, foretold))
            return
        link = self._cluster.client(client)
        is_expected = foretold is not None and foretold.link is link
        name = self._take_name(client)
        self._num_sent += 1
        # Drawn apart, too.
        draw = random.Random(f"{self._name} {self._num_sent} scores")
        goes_on = len(message.earlier_output) > 0
        is_scored = draw.random() < self._workload.score_fraction and not goes_on
        has_logprobs = draw.random() < self._workload.logprob_fraction
        sampling = DeviceSampling(
            seed=self._num_sent,
            num_logprobs=0 if has_logprobs else None,
            num_prompt_logprobs=0 if is_scored else None,
        )
        grammar = message.grammar
        if not goes_on:
            grammar = draw_grammar(
                random.Random(f"{self._workload.seed} {self._num_sent} grammar"),
                self._workload.grammar_fraction,
            )
        may_leave = draw.random() < self._workload.hand_over_fraction
        message = with_retention(message, link, self._workload, self._cluster, draw)
        sent = replace(
            message,
            asking=link.next_asking(),
            request_id=name,
            sampling=sampling,
            grammar=grammar,
            goes_on_elsewhere=may_leave and not goes_on,
            expected_as=foretold.asking if foretold is not None and is_expected else None,
        )
        answer = self._cluster.submit(sent, client)
        if sent.goes_on_elsewhere and draw.random() < self._workload.foretold_fraction:
            self._foretell(answer, client, draw)
        self._named[answer] = name
        if self._random.random() < self._workload.abort_fraction:
            self._cluster.after(self._random.uniform(0, 0.4), lambda: self._end_early(answer))
        if message.sample_of is None and draw.random() < self._workload.sample_fraction:
            self._num_pending += 1
            self._submit(client, replace(message, sample_of=name))

    def _foretell(self, answer: Answer, client: str, draw: random.Random) -> None:
        """Tell the next engine what it is to go on with; some of that comes late, or never."""
        there = self._next._cluster
        if there.is_ended or not there.scheduler.is_up:
            return
        link = there.client(client)
        asking = link.next_asking()
        link.expect(
            ExpectRequest(
                asking=asking,
                token_ids=answer.submit.token_ids,
                within_s=draw.choice([0.02, 0.5, 5.0, 500.0]),
                cache_salt=answer.submit.cache_salt,
                priority=answer.submit.priority,
            )
        )
        self._foretold[answer] = Foretold(link, asking)

    def _end_early(self, answer: Answer) -> None:
        """Abort or stop, ended long ago or not; often the name counts as free at once."""
        end = self._random.choice([answer.link.abort, answer.link.stop])
        if isinstance(answer.asked, PrefetchPrompt):
            end = answer.link.abort
        end(answer)
        is_taken = answer in self._named and answer.link.link.is_open
        if not is_taken or self._random.random() < 0.5:
            return
        self._free_name(answer)
        if answer.link.name != _HINTER and self._random.random() < 0.5:
            self._num_pending += 1
            self._send_new(answer.link.name)

    def _take_name(self, client: str) -> RequestId:
        """The name that came free last, or a new one if none is."""
        if self._free[client]:
            return self._free[client].pop()
        self._num_names += 1
        return RequestId(f"{client}{self._num_names}")

    def _free_name(self, answer: Answer) -> None:
        name = self._named.pop(answer, None)
        if name is not None:
            self._free[answer.link.name].append(name)

    @property
    def _takes_hints(self) -> bool:
        settings = self._workload.settings
        return settings.has_host_memory and settings.prefix_caching

    def _on_ending(self, answer: Answer) -> None:
        self._free_name(answer)
        foretold = self._foretold.pop(answer, None)
        if foretold is not None and answer.ending != HANDED_OVER:
            foretold.link.expect(
                AbortRequest(asking=foretold.asking, request_id=answer.asked.request_id)
            )
        is_request = isinstance(answer.asked, SubmitRequest)
        if is_request and may_fail(answer.submit.grammar) and answer.ending == _REFUSED:
            self._num_pending -= 1
            return
        is_taken = is_request or self._takes_hints
        assert answer.ending != _REFUSED or not is_taken, f"{answer.asked} is refused"
        if not is_request:
            return
        if answer.ending == CUT_OFF:
            client = answer.link.name
            submit = replace(answer.submit, known_output=int32_array(answer.output))
            self._cluster.after(
                self._random.uniform(0, _RETRY_S), lambda: self._submit(client, submit)
            )
        elif answer.ending == HANDED_OVER:
            self._hand_over(answer, foretold)
        elif not self._follows_up(answer):
            self._num_pending -= 1

    def _hand_over(self, answer: Answer, foretold: Foretold | None) -> None:
        """Ask the next engine for the rest; the own one if that has ended."""
        there = self if self._next._cluster.is_ended else self._next
        rest = replace(
            answer.submit,
            known_output=int32_array(answer.output),
            goes_on_elsewhere=False,
            sample_of=None,
        )
        self._num_pending -= 1
        there._num_pending += 1
        client = answer.link.name
        delay_s = self._random.uniform(0, _RETRY_S)
        self._cluster.after(delay_s, lambda: there._submit(client, rest, foretold))

    def _follows_up(self, answer: Answer) -> bool:
        prompt = [*answer.submit.token_ids.tolist(), *answer.output]
        room = self._workload.settings.max_model_len - 1 - len(prompt)
        wants_more = self._random.random() < self._workload.follow_up_fraction
        if answer.ending != "length" or not wants_more or room <= self._workload.max_suffix_tokens:
            return False
        prompt += self._tokens(
            self._random, 1 + self._random.randrange(self._workload.max_suffix_tokens)
        )
        self._cluster.after(
            self._random.uniform(0, 0.5), lambda: self._send(prompt, answer.submit.cache_salt)
        )
        return True
