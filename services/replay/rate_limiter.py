"""The rate limiter: keeps samples and inserts in proportion, and says in a sentence why it holds either back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from services.replay.table_info import TableSettings


@dataclass(frozen=True)
class Stock:
    """What a table has to draw from."""

    num_items: int  # that can be drawn
    num_resident: int  # items in the ring, with those that were drawn up or have expired
    num_draws: float  # that the items stand; infinite without max_times_sampled
    is_full: bool  # every row of the ring is in use: more rows it will not hold
    num_expired: int = 0  # of the resident, older than max_lag_updates


class RateLimiter:
    """Holds the samples that are owed within +-error_buffer, once the table has its first items (as Reverb's).

    With `balance` = samples_per_insert * inserted - sampled, counted from the moment the table first holds
    `min_size_to_sample` items: an insert of n steps may go if balance + n * samples_per_insert <= error_buffer, a
    sample of n items if balance - n >= -error_buffer.

    Where the table cannot serve a sample (too few items, or they were drawn up) inserts always go, and what they would
    owe beyond error_buffer is forgiven: samples could not free them. A full ring whose rows are final observations
    and open windows in part may never hold `min_size_to_sample` items; then those that it holds are enough.

    No state is a deadlock, with I the largest insert times samples_per_insert and S the largest sample, both <=
    error_buffer: if the table can serve S, either balance >= 0 and the sample goes, or balance < 0 and the insert goes;
    if it cannot, the insert goes, and inserts end in a table that can, since it has room for S draws.
    """

    def __init__(
        self,
        *,
        samples_per_insert: float,
        error_buffer: float,
        min_size_to_sample: int,
        capacity: int,
        max_insert_steps: int,
        max_sample_items: int,
        max_open_steps: int = 0,
        max_times_sampled: int = 0,
    ) -> None:
        """Check that no state exists in which both sides wait for each other.

        Args:
            samples_per_insert: drawn items per inserted step; 0: no limit.
            error_buffer: samples that either side may run ahead.
            min_size_to_sample: items in the table before the first draw.
            capacity: rows of the table.
            max_insert_steps: steps of the largest insert.
            max_sample_items: items of the largest sample call.
            max_open_steps: steps whose windows are open at once, n_step for each lane of each actor.
            max_times_sampled: draws after which an item leaves; 0: no limit.

        Raises:
            ValueError: the settings could deadlock; the message has the arithmetic.
        """
        _check_sizes(samples_per_insert, min_size_to_sample, max_insert_steps, max_sample_items)
        _check_room(min_size_to_sample, capacity, max_open_steps)
        if max_times_sampled:
            _check_draws(samples_per_insert, max_times_sampled, capacity - max_open_steps, max_sample_items)
        if samples_per_insert > 0.0:
            _check_buffer(samples_per_insert, error_buffer, max_insert_steps, max_sample_items)
        self.samples_per_insert = samples_per_insert
        self.error_buffer = error_buffer
        self.min_size_to_sample = min_size_to_sample
        self._max_sample_items = max_sample_items
        self.inserted = 0  # steps, ever
        self.sampled = 0  # items, ever
        self._free_inserted = 0  # of these, the ones that owe no samples
        self._free_sampled = 0
        self._forgiven = 0.0  # samples
        self._is_filled = False  # the table has held its first items

    @property
    def balance(self) -> float:
        """Samples that are owed to the inserts so far; negative when samples ran ahead."""
        owing = self.samples_per_insert * (self.inserted - self._free_inserted)
        return owing - (self.sampled - self._free_sampled) - self._forgiven

    def _least_items(self, stock: Stock) -> int:
        """Items that the table must hold before it is drawn from."""
        return max(1, min(self.min_size_to_sample, stock.num_resident)) if stock.is_full else self.min_size_to_sample

    def _can_serve(self, num_drawn: int, stock: Stock) -> bool:
        return stock.num_items >= self._least_items(stock) and stock.num_draws >= num_drawn

    def is_too_empty(self, num_drawn: int, stock: Stock) -> bool:
        """Whether it is for want of items that `num_drawn` cannot be drawn, and not for the ratio."""
        return not self._can_serve(num_drawn, stock)

    def can_insert(self, num_steps: int, stock: Stock) -> bool:
        """Whether `num_steps` more may be inserted into a table with `stock`."""
        if self.samples_per_insert == 0.0 or not self._can_serve(self._max_sample_items, stock):
            return True
        return self.balance + num_steps * self.samples_per_insert <= self.error_buffer

    def can_sample(self, num_drawn: int, stock: Stock) -> bool:
        """Whether `num_drawn` more may be drawn from a table with `stock`."""
        if not self._can_serve(num_drawn, stock):
            return False
        return self.samples_per_insert == 0.0 or self.balance - num_drawn >= -self.error_buffer

    def insert(self, num_steps: int, before: Stock, after: Stock) -> None:
        """Count `num_steps` inserted, which changed the table's stock from `before` to `after`."""
        self.inserted += num_steps
        if not self._is_filled:
            least = self._least_items(after)
            if before.num_items < least:
                self._free_inserted += num_steps - min(num_steps, max(0, after.num_items - least))
            self._is_filled = after.num_items >= least
        if self.samples_per_insert > 0.0:
            self._forgiven += max(0.0, self.balance - self.error_buffer)

    def sample(self, num_drawn: int) -> None:
        """Count `num_drawn` items."""
        self.sampled += num_drawn

    def restore(self, inserted: int, sampled: int) -> None:
        """Take over the counts of an earlier life; neither side owes the other anything."""
        self.inserted = self._free_inserted = inserted
        self.sampled = self._free_sampled = sampled
        self._forgiven = 0.0

    def why_no_insert(self, num_steps: int) -> str:
        """One sentence for an insert that must wait."""
        return (
            f"inserts are {self.balance:g} samples ahead and {num_steps} more steps x samples_per_insert "
            f"{self.samples_per_insert:g} would pass the error_buffer of {self.error_buffer:g}: the learner must sample"
        )

    def why_no_sample(self, num_drawn: int, stock: Stock) -> str:
        """One sentence for a sample that must wait."""
        least = self._least_items(stock)
        if stock.num_items < least:
            worn = stock.num_resident - stock.num_items - stock.num_expired
            drawn_up = f" ({worn} more were drawn max_times_sampled times)" if worn else ""
            if stock.num_expired:
                return (
                    f"the table holds {stock.num_items} items of the {least} of min_size_to_sample{drawn_up}, and "
                    f"{stock.num_expired} more are older than staleness.max_lag_updates allows: actors must insert "
                    f"steps of newer versions"
                )
            full = ", and its ring is full of rows that start no item" if stock.is_full and not worn else ""
            return (
                f"the table holds {stock.num_items} items of the {least} of min_size_to_sample{drawn_up}{full}: actors "
                f"must insert"
            )
        if stock.num_draws < num_drawn:
            return (
                f"the table's {stock.num_items} items stand {stock.num_draws:g} more draws by max_times_sampled, and "
                f"{num_drawn} are asked for: actors must insert"
            )
        return (
            f"samples are {-self.balance:g} ahead and {num_drawn} more would pass the error_buffer of "
            f"{self.error_buffer:g} at samples_per_insert {self.samples_per_insert:g}: actors must insert"
        )

    def explain(self, stock: Stock) -> str:
        """One sentence with the limiter's state and arithmetic."""
        if not self._can_serve(1, stock):
            return f"inserts run freely, samples wait: {self.why_no_sample(1, stock)}"
        short = ""
        if stock.num_items < self.min_size_to_sample:
            short = (
                f"; the ring is full with fewer items than the {self.min_size_to_sample} of min_size_to_sample (final "
                f"observations and open windows take rows), so these are drawn from"
            )
        if self.samples_per_insert == 0.0:
            return f"no limit: samples_per_insert is 0 and {stock.num_items} items are in the table{short}"
        forgiven = f" - {self._forgiven:g} forgiven" if self._forgiven else ""
        return (
            f"samples_per_insert {self.samples_per_insert:g} x {self.inserted - self._free_inserted} inserted - "
            f"{self.sampled - self._free_sampled} sampled{forgiven} = {self.balance:g} samples owed; inserts go below "
            f"{self.error_buffer:g}, samples above {-self.error_buffer:g}{short}"
        )

    def check_valid(self) -> Optional[str]:
        """What is wrong with the counts, or None."""
        if not 0 <= self._free_inserted <= self.inserted or not 0 <= self._free_sampled <= self.sampled:
            return "the rate limiter counts more free inserts or samples than there were"
        if self.samples_per_insert > 0.0 and abs(self.balance) > self.error_buffer * (1.0 + 1e-9):
            return f"the rate limiter's balance of {self.balance:g} is beyond its error_buffer of {self.error_buffer:g}"
        return None


def make_limiter(settings: TableSettings) -> RateLimiter:
    """The rate limiter of a table; a process makes one at its start to hear of a deadlock before any data come.

    Raises:
        ValueError: the settings could deadlock; the message has the arithmetic.
    """
    return RateLimiter(
        samples_per_insert=settings.samples_per_insert,
        error_buffer=settings.error_buffer,
        min_size_to_sample=settings.min_size_to_sample,
        capacity=settings.capacity,
        max_insert_steps=settings.max_chunk_steps,
        max_sample_items=settings.max_batch_size * settings.max_num_batches,
        max_open_steps=settings.max_open_steps,
        max_times_sampled=settings.sampling.max_times_sampled,
    )


def _check_draws(samples_per_insert: float, max_times_sampled: int, room: int, max_sample_items: int) -> None:
    if max_times_sampled < samples_per_insert:
        raise ValueError(
            f"max_times_sampled {max_times_sampled} is below samples_per_insert {samples_per_insert:g}: a step that is "
            f"inserted brings at most {max_times_sampled} draws, so the ratio can never be kept and inserts would wait "
            f"for samples that no item is left for; set max_times_sampled to at least "
            f"{math.ceil(samples_per_insert)}, or samples_per_insert to at most {max_times_sampled}"
        )
    # Where every step ends an episode, each second row is a final observation.
    draws = max_times_sampled * (room // 2)
    if draws < max_sample_items:
        least = 2 * math.ceil(max_sample_items / max_times_sampled)
        raise ValueError(
            f"one sample call takes {max_sample_items} items, but a table with room for {room} steps, each second of "
            f"which may be a final observation, stands only {draws} draws at max_times_sampled {max_times_sampled}: "
            f"the call would wait for ever; raise the capacity by {least - room} rows, or ask for smaller batches"
        )


def _check_sizes(
    samples_per_insert: float, min_size_to_sample: int, max_insert_steps: int, max_sample_items: int
) -> None:
    if not 0.0 <= samples_per_insert < float("inf"):
        raise ValueError(f"samples_per_insert is {samples_per_insert}; it must be finite and at least 0 (unlimited)")
    if min_size_to_sample < 1 or max_insert_steps < 1 or max_sample_items < 1:
        raise ValueError(
            f"min_size_to_sample is {min_size_to_sample}, the largest insert {max_insert_steps} steps and the "
            f"largest sample {max_sample_items} items; each must be at least 1"
        )


def _check_room(min_size_to_sample: int, capacity: int, max_open_steps: int) -> None:
    room = capacity - max_open_steps
    if min_size_to_sample > room:
        raise ValueError(
            f"min_size_to_sample is {min_size_to_sample} items, but the table has only {capacity} rows, of which "
            f"{max_open_steps} hold steps whose windows are open: sampling would never begin; set "
            f"min_size_to_sample to at most {max(0, room)}, or raise the capacity"
        )


def _check_buffer(samples_per_insert: float, error_buffer: float, max_insert_steps: int, max_sample_items: int) -> None:
    owed = max_insert_steps * samples_per_insert
    least = max(owed, float(max_sample_items))
    if not least <= error_buffer < float("inf"):
        raise ValueError(
            f"error_buffer is {error_buffer:g} samples, which could make inserts and samples wait for each "
            f"other: one chunk of {max_insert_steps} steps x samples_per_insert {samples_per_insert:g} allows "
            f"{owed:g} samples, and one sample call takes {max_sample_items} items; set error_buffer to at "
            f"least {least:g}"
        )
