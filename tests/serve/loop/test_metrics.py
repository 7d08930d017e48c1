"""GET /metrics: the names of vLLM's metrics, and figures that add up."""

import time

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serve.conftest import MODEL, served

NAMES = """num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total
prefix_cache_hits_total num_preemptions_total prompt_tokens_recomputed_total
prompt_tokens_total generation_tokens_total request_success_total
time_to_first_token_seconds
inter_token_latency_seconds e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds
request_decode_time_seconds request_prompt_tokens request_generation_tokens iteration_tokens_total
spec_decode_num_drafts_total spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total
prompt_tokens_cached_total request_inference_time_seconds request_time_per_output_token_seconds request_params_n
request_params_max_tokens request_max_num_generation_tokens request_prefill_kv_computed_tokens""".split()


def samples(url):
    """The samples by name, without labels but the last; histograms by their count and sum."""
    found = {}
    for family in text_string_to_metric_families(httpx2.get(f"{url}/metrics", timeout=60).text):
        for each in family.samples:
            if not each.name.endswith(("_bucket", "_created")):
                more = [value for label, value in each.labels.items() if label != "model_name"]
                found[" ".join([each.name, *more])] = each.value
    return found


@pytest.mark.parametrize("prefix", ["tokenmill", "vllm"])
def test_figures_add_up(chat_model, prefix):
    with served(chat_model, metrics_prefix=prefix) as server:
        body = {"prompt": " ".join(f"w{number}" for number in range(20)), "max_tokens": 7, "temperature": 0}
        for _ in range(3):
            assert httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
        found = samples(server.url)
    assert all(name.startswith(f"{prefix}:") for name in found)
    found = {name.removeprefix(f"{prefix}:"): value for name, value in found.items()}
    assert not [name for name in NAMES if not {name, f"{name}_count", f"{name} length"} & set(found)]
    assert (found["prompt_tokens_total"], found["generation_tokens_total"]) == (60, 21)
    assert (found["prefix_cache_queries_total"], found["prefix_cache_hits_total"]) == (60, 32)
    assert found["request_success_total length"] == 3
    assert found["num_requests_running"] == found["num_requests_waiting"] == found["kv_cache_usage_perc"] == 0
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time"):
        assert found[f"{name}_seconds_count"] == 3
    assert found["inter_token_latency_seconds_count"] == 18
    assert found["iteration_tokens_total_sum"] >= 60 - 32 + 18


def test_requests_are_counted_by_prompt_and_their_longest_text(chat_model):
    body = {"prompt": ["w1 w2", "w3"], "max_tokens": 5, "n": 2, "temperature": 1, "seed": 3, "ignore_eos": True}
    with served(chat_model, metrics_prefix="vllm") as server:
        httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60).raise_for_status()
        httpx2.post(f"{server.url}/v1/completions", json={"prompt": "w4", "max_tokens": 2}, timeout=60)
        found = samples(server.url)
    counted = {name: found[f"vllm:request_{name}_count"] for name in ("params_n", "params_max_tokens")}
    assert counted == {"params_n": 3, "params_max_tokens": 3}
    assert found["vllm:request_params_n_sum"] == 2 + 2 + 1
    assert found["vllm:request_params_max_tokens_sum"] == 5 + 5 + 2
    assert found["vllm:request_max_num_generation_tokens_sum"] == 5 + 5 + 2
    assert found["vllm:request_prefill_kv_computed_tokens_count"] == 5


def test_the_cache_is_described_as_vllm_does(chat_model):
    with served(chat_model, {"block_size": 8, "cache_tokens": 96}) as server:
        text = httpx2.get(f"{server.url}/metrics", timeout=60).text
    (family,) = [each for each in text_string_to_metric_families(text) if each.name == "tokenmill:cache_config_info"]
    (sample,) = family.samples
    assert (family.type, sample.value) == ("gauge", 1)
    assert sample.labels == {
        "model_name": MODEL,
        "block_size": "8",
        "num_gpu_blocks": "12",
        "cache_dtype": "float32",
        "enable_prefix_caching": "True",
    }


def test_accepted_drafts_are_counted_by_their_place(chat_model):
    with served(chat_model, metrics_prefix="vllm") as server:
        stats = server.driver.core.speculation.stats
        for num_accepted in (3, 1, 0, 3):
            stats.count(3, num_accepted)
        found = samples(server.url)
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [found[f"{name} {position}"] for position in range(3)] == [3, 2, 2]
    assert found["vllm:spec_decode_num_drafts_total"] == 4
    assert found["vllm:spec_decode_num_accepted_tokens_total"] == 7


def test_who_leaves_is_counted(chat_model):
    with served(chat_model) as server:
        body = {"prompt": "w1", "max_tokens": 90, "temperature": 0, "stream": True}
        with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            next(response.iter_lines())
        while server.admission.num_open or server.driver.core.trackers:
            time.sleep(0.01)
        server.driver.core.call(lambda: None)  # the last step is counted then
        found = samples(server.url)
    assert (
        found.get("tokenmill:request_success_total abort", 0) + found.get("tokenmill:request_success_total length", 0)
        == 1
    )


def test_refusals_are_counted(chat_model):
    with served(chat_model, {"max_sequences": 1}, max_queued=0) as server, server.admission.slots(1):
        assert httpx2.post(f"{server.url}/v1/completions", json={"prompt": "w1"}, timeout=60).status_code == 429
        assert samples(server.url)["tokenmill:admission_rejections_total queue_full"] == 1
