"""How a step's prompt tokens are divided among the prompts that could use them.

A better level goes first: a newcomer of better priority has the next step before a prompt that has
computed half of its chunks. Within a level prompts come in the order in which they were admitted,
which is the policy's. So a prompt longer than a step would keep all others out until it has ended.
Therefore a fraction of the steps that cut a prompt goes to shorter ones behind it, the shortest
first: to those which would end before it at this pace. They wait for a step or two instead of for
all of it, and it ends later by no more than they take, at worst by that fraction of its steps.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class PromptWork(NamedTuple):
    """What is left of a prompt that could have a row in a step. Each step makes one per prompt."""

    num_planned: int
    """The number of prompt tokens that were planned before: whole pages, as every part of a prompt
    but the last ends with a page.
    """
    num_tokens: int
    level: int
    """The request's priority and what ageing adds to it; the smallest level goes first."""
    priority: int

    def less(self, num_tokens: int) -> "PromptWork":
        """What is left when a step has taken `num_tokens` tokens."""
        return PromptWork(self.num_planned, self.num_tokens - num_tokens, self.level, self.priority)


class StepRoom(NamedTuple):
    """How many prompt tokens a step may still take. Prompts are charged whole pages."""

    budget_tokens: int
    shared_tokens: int
    """The limit once the step has tokens of one prompt already: `mixture.shared_tokens`."""
    most_tokens: int | None
    """The most prompt tokens of any step: a longer prompt has to be cut. None: no prompt is cut."""
    page_size: int
    short_fraction: float
    """The part of a step that cuts a prompt which goes to shorter prompts behind it, if any."""
    has_prompt: bool = False
    """Whether the step has tokens of a prompt already."""

    def charged(self, num_tokens: int) -> int:
        """The tokens that a row of `num_tokens` tokens is charged."""
        return -(-num_tokens // self.page_size) * self.page_size

    def less(self, num_tokens: int) -> "StepRoom":
        """The room that is left when a prompt has taken `num_tokens` tokens."""
        charged = self.charged(num_tokens)
        shared = self.shared_tokens - charged
        budget = min(self.budget_tokens - charged, shared)
        return self._replace(budget_tokens=budget, shared_tokens=shared, has_prompt=True)

    def bounded(self, budget_tokens: int, shared_tokens: int) -> "StepRoom":
        """The same room with these limits."""
        return self._replace(budget_tokens=budget_tokens, shared_tokens=shared_tokens)

    def is_long(self, prompt: PromptWork) -> bool:
        """Whether no step can take all of the prompt."""
        return self.most_tokens is not None and prompt.num_tokens > self.most_tokens

    def cuts(self, prompt: PromptWork) -> bool:
        """Whether the step would take only a part of the prompt.

        Not of one that could join others in part alone, if some step can take it whole: to be cut
        costs another step's fixed time, and would hold the others up for nothing.
        """
        is_cut = self.most_tokens is not None and prompt.num_tokens > self.budget_tokens
        return is_cut and (self.is_long(prompt) or not self.has_prompt)

    def whole_of(self, prompt: PromptWork) -> int:
        """All tokens of a prompt that is not cut, or none."""
        has_room = prompt.num_tokens <= self.budget_tokens
        is_alone = self.most_tokens is None and not self.has_prompt
        return prompt.num_tokens if has_room or is_alone else 0

    def part_of(self, prompt: PromptWork, num_tokens: int) -> int:
        """The tokens of a prompt up to the last page that ends within `num_tokens`, or all."""
        end = (prompt.num_planned + num_tokens) // self.page_size * self.page_size
        return min(prompt.num_tokens, max(0, end - prompt.num_planned))

    def short_tokens(self) -> int:
        """The tokens that shorter prompts get of a step that cuts one: a page at least, not all."""
        is_divided = self.short_fraction > 0 and self.budget_tokens >= 2 * self.page_size
        num_pages = int(self.short_fraction * self.budget_tokens) // self.page_size
        return max(1, num_pages) * self.page_size if is_divided else 0


def share_out(prompts: Sequence[PromptWork], room: StepRoom) -> list[int]:
    """How many tokens each prompt gets of a step; they are given in the policy's order."""
    tokens = [0] * len(prompts)
    order = [*range(len(prompts))]
    # In most steps there is one.
    if len(order) > 1:
        order.sort(key=lambda index: prompts[index].level)

    for place, index in enumerate(order):
        if room.budget_tokens <= 0:
            break
        prompt = prompts[index]
        if not room.cuts(prompt):
            num_tokens = room.whole_of(prompt)
        else:
            # The step is as long as it would be without them: the long one alone would fill it.
            num_left = room.budget_tokens
            behind = order[place + 1 :]
            for short, num_short in _beside(prompts, prompt, behind, room):
                tokens[short] = num_short
                num_left -= room.charged(num_short)
            num_tokens = room.part_of(prompt, num_left)
            if num_left < room.budget_tokens or num_tokens:
                tokens[index] = num_tokens
                break

        if num_tokens:
            tokens[index] = num_tokens
            room = room.less(num_tokens)
    return tokens


def most_beside(long_tokens: int, short_fraction: float) -> float:
    """The most tokens of a prompt that ends before a long one, of whose steps it has the fraction.

    They take r / fB and R / (1 - f)B steps.
    """
    return long_tokens * short_fraction / (1.0 - short_fraction)


def may_join(long: PromptWork, *, priority: int, level: int) -> bool:
    """Whether a prompt of this priority and level may have a share of a long one's steps.

    One that comes much later is a level behind, but of no worse priority.
    """
    return priority <= long.priority or level <= long.level


def _beside(
    prompts: Sequence[PromptWork], long: PromptWork, behind: Sequence[int], room: StepRoom
) -> Iterator[tuple[int, int]]:
    """Tokens of the step that cuts the long prompt, by prompt: the shortest go first."""
    num_left = room.short_tokens()
    most = most_beside(long.num_tokens, room.short_fraction)
    short = [
        index
        for index in behind
        if prompts[index].num_tokens <= most
        and may_join(long, priority=prompts[index].priority, level=prompts[index].level)
    ]
    for index in sorted(short, key=lambda index: prompts[index].num_tokens):
        num_tokens = room.part_of(prompts[index], num_left)
        if num_tokens:
            num_left -= room.charged(num_tokens)
            yield index, num_tokens
