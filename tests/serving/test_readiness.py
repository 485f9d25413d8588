"""The metrics of a server, as `status` reads them."""

from __future__ import annotations

from builder.serving import readiness
from builder.serving.readiness import ServerMetrics

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="a} 7 {b \\" c"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:prompt_tokens_total{engine="0"} 1.2345678e+07
vllm:generation_tokens_total{engine="0"} 41.0 1700000000000
vllm:generation_tokens_created{engine="0"} 1.7e+09
vllm:kv_cache_usage_perc{engine="0"} 0.875
vllm:kv_cache_usage_perc{engine="1"} 0.625
vllm:spec_decode_num_draft_tokens_total{engine="0"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 261.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 99.0
process_open_fds 40.0
"""


def test_the_counts_are_summed_over_engines_and_the_share_is_their_mean() -> None:
    numbers = readiness.read_metrics(TEXT)
    assert numbers == ServerMetrics(3, 4, 12345678, 41, 300, 261, 0.75)
    assert numbers.acceptance == 0.87


def test_what_a_server_does_not_count_is_nought() -> None:
    numbers = readiness.read_metrics("vllm:num_requests_running 0.0\n")
    assert numbers == ServerMetrics(0, 0, 0, 0, 0, 0, 0.0)
    assert numbers.acceptance is None


def test_another_server_has_no_numbers() -> None:
    assert readiness.read_metrics("python_info 1.0\n") is None
    assert readiness.read_metrics("") is None
    assert readiness.read_metrics("vllm:num_requests_running nonsense\n") == ServerMetrics(0, 0, 0, 0, 0, 0, 0.0)


def test_a_sample_without_labels_counts() -> None:
    text = "vllm:num_requests_running 2.0\nvllm:generation_tokens_total 41 1700000000000\n"
    assert readiness.read_metrics(text) == ServerMetrics(2, 0, 0, 41, 0, 0, 0.0)


def test_what_is_no_count_is_nought() -> None:
    text = "vllm:num_requests_running +Inf\nvllm:generation_tokens_total NaN\nvllm:kv_cache_usage_perc NaN\n"
    assert readiness.read_metrics(text) == ServerMetrics(0, 0, 0, 0, 0, 0, 0.0)
