"""Gradients of helpers, a row of the learner's dashboard: who takes part, how they agree, what they cost."""

from __future__ import annotations

from deploy.grafana.generator.panel import Lines, Query, Row
from deploy.grafana.generator.shared import HELPER_WAITS, REPLAY

AT = '{run="$run"}'
NO_HELPERS = "no helpers"


def rate(metric: str, by: str = "run") -> str:
    """What a counter gains per second, added up by a label."""
    return f"sum by ({by}) (rate({metric}{AT}[$__rate_interval]))"


def quantile(share: float, histogram: str) -> str:
    """A quantile of what a histogram saw in the last seconds."""
    return f"histogram_quantile({share:g}, sum by (le) (rate({histogram}_bucket{AT}[$__rate_interval])))"


GRADIENTS = Row(
    "Gradients of helpers (empty without helpers)",
    (
        Lines(
            title="Helpers and contributors",
            alerts=("ShoalHelperLost",),
            shows="Helpers whose lease runs, and gradients in the latest step, the chief's own included.",
            good="contributors = helpers + 1.",
            otherwise="fewer contributors: a helper is late or abstains; its log says why.",
            queries=(
                Query(f"max(shoal_learner_gradient_helpers{AT})", "helpers"),
                Query(f"max(shoal_learner_gradient_contributors{AT})", "contributors"),
            ),
            decimals=0,
        ),
        Lines(
            title="Agreement of gradients",
            shows="Mean cosine between the contributors' gradients: 1 is the same direction, 0 none in common.",
            good="above 0. It falls as training goes on, since noise is then most of a gradient.",
            otherwise="below 0 for long: a helper computes something else. Do all run the same version of shoal and "
            "the same run file?",
            queries=(Query(f"max(shoal_learner_gradient_cosine{AT})", "cosine"),),
            lowest=-1.0,
            highest=1.0,
        ),
        Lines(
            title="Waiting for gradients",
            shows="How long a step waited for gradients: half of the steps and 95 of 100 at most this long.",
            good="short beside the time of an update.",
            otherwise="the slowest helper sets the pace: give it a faster machine or a smaller share, or take it away.",
            queries=(
                Query(quantile(0.5, "shoal_learner_gradient_wait_seconds"), "half"),
                Query(quantile(0.95, "shoal_learner_gradient_wait_seconds"), "95 %"),
            ),
            unit="s",
            empty=NO_HELPERS,
        ),
        Lines(
            title="What became of pushes",
            alerts=("ShoalGradientsRefused",),
            shows="Pushes per second by the chief's answer. *pending* is a push that goes on waiting for its step.",
            good="accepted (and pending) alone.",
            otherwise="*too stale*: the helper is slow for asynchronous mode. *bad checksum*: the network. *non "
            "finite*: the helper's loss. *chief restarted*: once after each restart. *fenced*: a second helper of "
            "the same name. *invalid*: another network than the chief's.",
            queries=tuple(
                Query(
                    f"sum(rate(shoal_learner_gradient_{answer}_total{AT}[$__rate_interval]))", answer.replace("_", " ")
                )
                for answer in (
                    "accepted",
                    "scaled",
                    "pending",
                    "abstained",
                    "too_stale",
                    "bad_checksum",
                    "non_finite",
                    "chief_restarted",
                    "fenced",
                    "invalid",
                )
            ),
            axis="per second",
        ),
        Lines(
            title="Lag of gradients",
            shows="Updates between a gradient's base and the step that took it, below which 95 of 100 are.",
            good="0 in synchronous mode.",
            otherwise="in asynchronous mode late gradients hurt: fewer helpers, or synchronous mode.",
            queries=(Query(quantile(0.95, "shoal_learner_gradient_lag_updates"), "95 %"),),
            axis="updates",
            empty=NO_HELPERS,
        ),
        Lines(
            title="Bytes of gradients",
            shows="Bytes per second as they travelled, and what the same gradients are in float32.",
            good="with int8 and packing about a fifth.",
            otherwise="if they are near each other, `gradients.codec` is `none`.",
            queries=(
                Query(rate("shoal_learner_gradient_received_bytes_total"), "as they travelled"),
                Query(rate("shoal_learner_gradient_raw_bytes_total"), "in float32"),
            ),
            unit="Bps",
        ),
        Lines(
            title="Rounds of each helper",
            shows="Gradients per second by helper, and what became of them.",
            good="accepted alone, as many from each.",
            otherwise="a helper with refused or abstained rounds only costs time: see its log.",
            queries=(
                Query(rate("shoal_helper_pushes_accepted_total", "instance"), "accepted, {{instance}}"),
                Query(rate("shoal_helper_pushes_refused_total", "instance"), "refused, {{instance}}"),
                Query(rate("shoal_helper_pushes_abstained_total", "instance"), "abstained, {{instance}}"),
            ),
            axis="per second",
            empty=NO_HELPERS,
        ),
        Lines(
            title="What helpers wait for",
            shows="The share of time that helpers spent waiting, on the mean, by what they waited for.",
            good="*the chief's answer* is the largest.",
            otherwise="*batches*: the replay cannot feed all of them; see *Replay*. *parameters*: the chief "
            "publishes slowly.",
            queries=(
                Query(f"avg by (reason) (rate(shoal_helper_waited_seconds_total{AT}[$__rate_interval]))", "{{reason}}"),
            ),
            unit="percentunit",
            highest=1.0,
            words=HELPER_WAITS,
            empty=NO_HELPERS,
            more=(REPLAY,),
        ),
        Lines(
            title="What compression holds back",
            shows="Norm of what earlier pushes of each helper could not say and later ones will (error feedback).",
            good="it levels off.",
            otherwise='one that grows without end: use `gradients.codec = "fp16"`.',
            queries=(Query(f"shoal_helper_residual_norm{AT}", "{{instance}}"),),
            empty=NO_HELPERS,
        ),
    ),
)
