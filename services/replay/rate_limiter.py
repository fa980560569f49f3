"""The rate limiter: keeps samples and inserts in proportion, and says in a sentence why it holds either back."""

from __future__ import annotations

from typing import Optional


class RateLimiter:
    """Holds the samples that are owed within +-error_buffer, once the table has its first items (as Reverb's).

    With `balance` = samples_per_insert * inserted - sampled, counted from the moment the table first holds
    `min_size_to_sample` items: an insert of n steps may go if balance + n * samples_per_insert <= error_buffer, a
    sample of n items if balance - n >= -error_buffer. Below `min_size_to_sample` items inserts always go, and owe
    nothing: samples could not free them.
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
    ) -> None:
        """Check that no state exists in which both sides wait for each other.

        Args:
            samples_per_insert: drawn items per inserted step; 0: no limit.
            error_buffer: samples that either side may run ahead.
            min_size_to_sample: items in the table before the first draw.
            capacity: rows of the table.
            max_insert_steps: steps of the largest insert.
            max_sample_items: items of the largest sample call.

        Raises:
            ValueError: the settings could deadlock; the message has the arithmetic.
        """
        if not 0.0 <= samples_per_insert < float("inf"):
            raise ValueError(
                f"samples_per_insert is {samples_per_insert}; it must be finite and at least 0 (unlimited)"
            )
        if min_size_to_sample < 1 or max_insert_steps < 1 or max_sample_items < 1:
            raise ValueError(
                f"min_size_to_sample is {min_size_to_sample}, the largest insert {max_insert_steps} steps and the "
                f"largest sample {max_sample_items} items; each must be at least 1"
            )
        if min_size_to_sample > capacity:
            raise ValueError(
                f"min_size_to_sample is {min_size_to_sample} items, but the table has only {capacity} rows: sampling "
                f"would never begin; set min_size_to_sample to less than the capacity"
            )
        if samples_per_insert > 0.0:
            owed = max_insert_steps * samples_per_insert
            least = max(owed, float(max_sample_items))
            if not least <= error_buffer < float("inf"):
                raise ValueError(
                    f"error_buffer is {error_buffer:g} samples, which could make inserts and samples wait for each "
                    f"other: one chunk of {max_insert_steps} steps x samples_per_insert {samples_per_insert:g} allows "
                    f"{owed:g} samples, and one sample call takes {max_sample_items} items; set error_buffer to at "
                    f"least {least:g}"
                )
        self.samples_per_insert = samples_per_insert
        self.error_buffer = error_buffer
        self.min_size_to_sample = min_size_to_sample
        self._max_insert_steps = max_insert_steps
        self._max_sample_items = max_sample_items
        self.inserted = 0  # steps, ever
        self.sampled = 0  # items, ever
        self._free_inserted = 0  # of these, the ones that owe no samples
        self._free_sampled = 0

    @property
    def balance(self) -> float:
        """Samples that are owed to the inserts so far; negative when samples ran ahead."""
        return self.samples_per_insert * (self.inserted - self._free_inserted) - (self.sampled - self._free_sampled)

    def can_insert(self, num_steps: int, num_items: int) -> bool:
        """Whether `num_steps` more may be inserted into a table that holds `num_items`."""
        if self.samples_per_insert == 0.0 or num_items < self.min_size_to_sample:
            return True
        return self.balance + num_steps * self.samples_per_insert <= self.error_buffer

    def can_sample(self, num_drawn: int, num_items: int) -> bool:
        """Whether `num_drawn` more may be drawn from a table that holds `num_items`."""
        if num_items < self.min_size_to_sample:
            return False
        return self.samples_per_insert == 0.0 or self.balance - num_drawn >= -self.error_buffer

    def insert(self, num_steps: int, items_before: int, items_after: int) -> None:
        """Count `num_steps` inserted into a table that held `items_before` and now holds `items_after` items."""
        self.inserted += num_steps
        if items_before < self.min_size_to_sample:
            owing = min(num_steps, max(0, items_after - self.min_size_to_sample))
            self._free_inserted += num_steps - owing

    def sample(self, num_drawn: int) -> None:
        """Count `num_drawn` items."""
        self.sampled += num_drawn

    def reset(self) -> None:
        """Begin with a balance of 0, as after a restore: neither side owes the other anything."""
        self._free_inserted, self._free_sampled = self.inserted, self.sampled

    def why_no_insert(self, num_steps: int) -> str:
        """One sentence for an insert that must wait."""
        return (
            f"inserts are {self.balance:g} samples ahead and {num_steps} more steps x samples_per_insert "
            f"{self.samples_per_insert:g} would pass the error_buffer of {self.error_buffer:g}: the learner must sample"
        )

    def why_no_sample(self, num_drawn: int, num_items: int) -> str:
        """One sentence for a sample that must wait."""
        if num_items < self.min_size_to_sample:
            return (
                f"the table holds {num_items} items of the {self.min_size_to_sample} of min_size_to_sample: actors "
                f"must insert"
            )
        return (
            f"samples are {-self.balance:g} ahead and {num_drawn} more would pass the error_buffer of "
            f"{self.error_buffer:g} at samples_per_insert {self.samples_per_insert:g}: actors must insert"
        )

    def explain(self, num_items: int) -> str:
        """One sentence with the limiter's state and arithmetic."""
        if num_items < self.min_size_to_sample:
            return f"inserts run freely, samples wait: {self.why_no_sample(1, num_items)}"
        if self.samples_per_insert == 0.0:
            return f"no limit: samples_per_insert is 0 and {num_items} items are in the table"
        return (
            f"samples_per_insert {self.samples_per_insert:g} x {self.inserted - self._free_inserted} inserted - "
            f"{self.sampled - self._free_sampled} sampled = {self.balance:g} samples owed; inserts go below "
            f"{self.error_buffer:g}, samples above {-self.error_buffer:g}"
        )

    def check_valid(self) -> Optional[str]:
        """What is wrong with the counts, or None."""
        if not 0 <= self._free_inserted <= self.inserted or not 0 <= self._free_sampled <= self.sampled:
            return "the rate limiter counts more free inserts or samples than there were"
        if self.samples_per_insert > 0.0 and abs(self.balance) > self.error_buffer + max(
            self.samples_per_insert * self._max_insert_steps, float(self._max_sample_items)
        ):
            return f"the rate limiter's balance of {self.balance:g} is beyond its error_buffer of {self.error_buffer:g}"
        return None
