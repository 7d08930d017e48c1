"""The metrics of GET /metrics, under vLLM's names, so that its dashboards work.

It watches the loop as an observer and is told how requests end. All of it is written by the engine's thread; the event
loop only reads.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as List
from statistics import fmean
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tokenmill.engine.core import Core
from tokenmill.engine.loop import Observer
from tokenmill.engine.outputs import Completion, Tracker
from tokenmill.schedule.sequence import Plan, Sequence
from tokenmill.serve.openai.choices import REASONS

# The bounds of vLLM's histograms.
SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
COUNTS = (1, 2, 5, 10, 20)
LONG = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
RECOMPUTED = "Prompt tokens whose K and V rows were found, computed again because no state was kept there"
ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)


class Metrics(Observer):
    """The figures of one server. prefix: of all names."""

    def __init__(self, core: Core, model: str, prefix: str = "tokenmill") -> None:
        self._core, self.registry = core, CollectorRegistry()
        self._prefix, self._labels = prefix, {"model_name": model}
        self._started_s: dict[int, float] = {}  # when each sequence first ran, by its id
        self._cached = self._made(Counter, "prompt_tokens_cached", "Prompt tokens that need not be computed")
        self._prompt = self._made(Counter, "prompt_tokens", "Prompt tokens of sequences that have been scheduled")
        self._queries = self._made(Counter, "prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self._hits = self._made(Counter, "prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self._generated = self._made(Counter, "generation_tokens", "Generated tokens of sequences that have ended")
        self._success = self._counter("request_success", "Sequences that have ended", "finished_reason")
        self._rejected = self._counter("admission_rejections", "Requests that were not taken", "reason")
        self._ttft = self._histogram("time_to_first_token_seconds", "Time from submission to the first token", SECONDS)
        self._gaps = self._histogram("inter_token_latency_seconds", "Between two tokens of a sequence", GAPS)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Time from submission to the last token", LONG)
        self._queued = self._histogram("request_queue_time_seconds", "Time until a sequence is first scheduled", LONG)
        self._prefill = self._histogram("request_prefill_time_seconds", "Time from there to the first token", LONG)
        self._decode = self._histogram("request_decode_time_seconds", "Time from the first token to the last", LONG)
        self._prompt_sizes = self._histogram("request_prompt_tokens", "Tokens of a prompt", TOKENS)
        self._answer_sizes = self._histogram("request_generation_tokens", "Generated tokens of a sequence", TOKENS)
        self._inference = self._histogram("request_inference_time_seconds", "Time from there to the last token", LONG)
        self._per_token = self._histogram("request_time_per_output_token_seconds", "Mean of these gaps", GAPS)
        self._computed = self._histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens that were not found in the prefix cache", TOKENS
        )
        self._num_wanted = self._histogram("request_params_n", "Continuations of each prompt of a request", COUNTS)
        self._max_wanted = self._histogram("request_params_max_tokens", "Tokens that a text may have", TOKENS)
        self._longest = self._histogram(
            "request_max_num_generation_tokens", "Generated tokens of the longest text of a request", TOKENS
        )
        self._iteration = self._histogram("iteration_tokens_total", "Tokens that a step feeds", ITERATION)
        self._kept = _Kept(core, prefix, model)
        self.registry.register(self._kept)

    def text(self) -> bytes:
        """Write the metrics in the format that Prometheus reads."""
        return generate_latest(self.registry)

    def phase(self, name: str, plan: Plan | None) -> None:
        if plan is None or name != "plan":
            return
        self._iteration.observe(sum(work.count for work in plan.work))
        for work in plan.work:
            if work.sequence.id not in self._started_s:
                self._begun(work.sequence)

    def update_gauges(self) -> None:
        """Note the gauges. Sequences that were cancelled have given their blocks back by then."""
        num_used, scheduler = self._core.num_used_blocks, self._core.scheduler
        self._kept.gauges = len(scheduler.running), len(scheduler.waiting), num_used / scheduler.allocator.num_blocks

    def ended(self, sequence: Sequence, done: Completion | None) -> None:
        """Count a sequence that has ended, with a completion or without."""
        started_s = self._started_s.pop(sequence.id, None)
        if done is None:
            self._success.labels(**self._labels, finished_reason="abort").inc()
            return
        timing, reason = done.timing, REASONS[done.finish_reason]
        self._success.labels(**self._labels, finished_reason=reason).inc()
        self._generated.inc(len(done.tokens))
        self._prompt_sizes.observe(done.num_prompt_tokens)
        self._answer_sizes.observe(len(done.tokens))
        self._ttft.observe(timing.ttft_s)
        for gap_s in timing.itl_s:
            self._gaps.observe(gap_s)
        self._e2e.observe(timing.total_s)
        self._decode.observe(sum(timing.itl_s))
        if timing.itl_s:
            self._per_token.observe(fmean(timing.itl_s))
        self._computed.observe(sequence.num_prompt_tokens - (sequence.num_cached_tokens or 0))
        if started_s is not None:
            self._queued.observe(started_s)
            self._prefill.observe(max(timing.ttft_s - started_s, 0.0))
            self._inference.observe(max(timing.total_s - started_s, 0.0))

    def request_ended(self, trackers: List[Tracker]) -> None:
        """Count a request whose sequences have all ended. Each prompt counts as a request, unless it was broken off."""
        num_each = trackers[0].sequence.choosing.params.n if trackers else 1
        for first in range(0, len(trackers), num_each):
            group = trackers[first : first + num_each]
            if all(each.completion is not None for each in group):
                sequence = group[0].sequence
                self._num_wanted.observe(num_each)
                self._max_wanted.observe(sequence.max_tokens - sequence.num_prompt_tokens)
                self._longest.observe(max(len(each.tokens) for each in group))

    def count_rejected(self, reason: str) -> None:
        """Count a request that was not taken."""
        self._rejected.labels(**self._labels, reason=reason).inc()

    def _begun(self, sequence: Sequence) -> None:
        tracker = self._core.trackers.get(sequence.id)
        if tracker is None:
            return
        self._started_s[sequence.id] = self._core.loop.clock() - tracker.started_s
        self._prompt.inc(sequence.num_prompt_tokens)
        self._queries.inc(sequence.num_prompt_tokens)
        self._hits.inc(sequence.num_cached_tokens or 0)
        self._cached.inc(sequence.num_cached_tokens or 0)

    def _made(self, kind: Any, name: str, text: str, **more: Any) -> Any:
        made = kind(f"{self._prefix}:{name}", text, ["model_name"], registry=self.registry, **more)
        return made.labels(**self._labels)

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"{self._prefix}:{name}", text, ["model_name", label], registry=self.registry)

    def _histogram(self, name: str, text: str, bounds: Iterable[float]) -> Histogram:
        made: Histogram = self._made(Histogram, name, text, buckets=tuple(bounds))
        return made


def merged(all_metrics: Iterable[Metrics], states: Mapping[str, tuple[bool, int]], prefix: str) -> bytes:
    """Write the metrics of several models. states: whether each model is in memory, and how often it was loaded."""
    registry = CollectorRegistry()
    registry.register(_Merged([each.registry for each in all_metrics], states, prefix))
    return generate_latest(registry)


class _Merged(Collector):
    """The families of several registries, each in one place."""

    def __init__(
        self, registries: List[CollectorRegistry], states: Mapping[str, tuple[bool, int]], prefix: str
    ) -> None:
        self._registries, self._states, self._prefix = registries, states, prefix

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        loaded = GaugeMetricFamily(f"{self._prefix}:model_loaded", "Whether it is in memory", labels=["model_name"])
        loads = CounterMetricFamily(f"{self._prefix}:model_loads", "Times it was loaded", labels=["model_name"])
        for name, (is_loaded, number) in self._states.items():
            loaded.add_metric([name], is_loaded)
            loads.add_metric([name], number)
        families: dict[str, Metric] = {each.name: each for each in (loaded, loads)}
        for registry in self._registries:
            for family in registry.collect():
                if (known := families.setdefault(family.name, family)) is not family:
                    known.samples.extend(family.samples)
        return families.values()


class _Kept(Collector):
    """The figures that are kept elsewhere: gauges, which change at every step, and counters of the engine.

    gauges: how many sequences run and wait, and the share of the blocks of the KV cache that are in use.
    """

    def __init__(self, core: Core, prefix: str, model: str) -> None:
        self._core, self._prefix, self._model = core, prefix, model
        self.gauges: tuple[int, int, float] = (0, 0, 0.0)

    def collect(self) -> Iterable[Metric]:
        running, waiting, usage = self.gauges
        stats, scheduler = self._core.speculation.stats, self._core.scheduler
        for kind, name, text, value in (
            (GaugeMetricFamily, "num_requests_running", "Sequences that are running", running),
            (GaugeMetricFamily, "num_requests_waiting", "Sequences that wait to be scheduled", waiting),
            (GaugeMetricFamily, "kv_cache_usage_perc", "Share of the KV cache's blocks in use, 0 to 1", usage),
            (CounterMetricFamily, "num_preemptions", "Sequences that were preempted", scheduler.num_preemptions),
            (CounterMetricFamily, "prompt_tokens_recomputed", RECOMPUTED, scheduler.num_recomputed),
            (CounterMetricFamily, "spec_decode_num_drafts", "Passes with drafts, by sequence", stats.histogram.total()),
            (CounterMetricFamily, "spec_decode_num_draft_tokens", "Tokens that were drafted", stats.num_drafted),
            (CounterMetricFamily, "spec_decode_num_accepted_tokens", "Drafts that were accepted", stats.num_accepted),
        ):
            family = kind(f"{self._prefix}:{name}", text, labels=["model_name"])
            family.add_metric([self._model], value)
            yield family
        yield self._accepted_by_position()
        yield self._cache_config()

    def _accepted_by_position(self) -> Metric:
        """Count accepted drafts by position, of which the first is 0: a pass that accepted n counts at the first n."""
        name, text = "spec_decode_num_accepted_tokens_per_pos", "Drafts that were accepted, by their place in a pass"
        family = CounterMetricFamily(f"{self._prefix}:{name}", text, labels=["model_name", "position"])
        histogram = dict(self._core.speculation.stats.histogram)
        for position in range(max(histogram, default=0)):
            count = sum(times for num_accepted, times in histogram.items() if num_accepted > position)
            family.add_metric([self._model, str(position)], count)
        return family

    def _cache_config(self) -> Metric:
        """Tell of the KV cache in labels of a gauge that is always 1. vLLM says num_gpu_blocks on a CPU too."""
        loaded, allocator = self._core.loaded, self._core.scheduler.allocator
        labels = {
            "block_size": str(allocator.block_size),
            "num_gpu_blocks": str(allocator.num_blocks),
            "cache_dtype": loaded.config.dtype if loaded.config.cache_format == "dense" else loaded.config.cache_format,
            "enable_prefix_caching": str(loaded.config.prefix_cache),
        }
        names, text = ["model_name", *labels], "Blocks of the KV cache, and tokens of each"
        family = GaugeMetricFamily(f"{self._prefix}:cache_config_info", text, labels=names)
        family.add_metric([self._model, *labels.values()], 1)
        return family
