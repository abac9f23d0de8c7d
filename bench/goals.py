"""The goals of the benchmark: a figure that a part of run.py returns, what it means, its limit.

A goal is a ratio of two contestants of the same run where it can be one: ratios depend less on the
machine. table() says of each goal whether it was reached, or how far the run was from it.
"""

# (part of run.py, figure, text, unit, "≥" or "≤", limit)
GOALS = (
    (
        "contest",
        "hot_inthread",
        "hot tokens/s, int64 ÷ the best loader without workers",
        "×",
        "≥",
        5,
    ),
    (
        "contest",
        "hot_torch",
        "the same ÷ torch's DataLoader, the best when the goal was set",
        "×",
        "≥",
        5,
    ),
    ("contest", "hot_workers", "hot tokens/s, int64 ÷ the best loader with workers", "×", "≥", 80),
    ("contest", "busy_inthread", "with every core busy ÷ the best without workers", "×", "≥", 3),
    ("contest", "busy_torch", "the same ÷ torch's DataLoader without workers", "×", "≥", 3),
    ("contest", "busy_workers", "with every core busy ÷ the best with workers", "×", "≥", 50),
    ("contest", "int32", "into int32 ÷ the best int64 loader without workers", "×", "≥", 8),
    ("contest", "view", "as views ÷ the best int64 loader without workers", "×", "≥", 12),
    (
        "contest",
        "c_fio",
        "C client, stored width ÷ fio's hot random reads, io_uring",
        "×",
        "≥",
        0.8,
    ),
    ("cold", "cold_fio", "cold random windows ÷ fio's direct reads", "×", "≥", 0.9),
    ("cold", "device_direct", "device bytes per byte delivered, direct", "", "≤", 1.1),
    ("cold", "device_buffered", "the same, buffered", "", "≤", 2),
    ("contest", "cpu_all", "CPU of all processes a token ÷ torch without workers", "×", "≤", 0.35),
    ("contest", "cpu_thread", "CPU of the trainer's thread a token ÷ the same", "×", "≤", 0.2),
    ("memory", "memory_8", "8 trainers: private + shared ÷ torch's", "×", "≤", 0.2),
    (
        "memory",
        "memory_growth",
        "the daemon without rings: with 8 trainers ÷ with one",
        "×",
        "≤",
        1.1,
    ),
    (
        "starts",
        "start_running_ms_1e8",
        "torch imported → first batch, 10⁸ samples, daemon runs",
        "ms",
        "≤",
        5,
    ),
    ("starts", "start_running_ms_1e10", "the same, 10¹⁰ samples", "ms", "≤", 5),
    (
        "starts",
        "start_cold_ms_1e8",
        "torch imported → first batch, 10⁸ samples, no daemon",
        "ms",
        "≤",
        40,
    ),
    ("starts", "start_cold_ms_1e10", "the same, 10¹⁰ samples", "ms", "≤", 40),
    ("steps", "step_p50_us", "all of next() in steps of 20 ms, p50", "µs", "≤", 15),
    ("steps", "step_p999_us", "the same, p99.9", "µs", "≤", 60),
    ("steps", "step_max_us", "the same, the longest", "µs", "≤", 400),
    ("ready", "next_c_ns", "a ready next() in C", "ns", "≤", 30),
    ("ready", "next_python_us", "a ready next() in Python, without the copy", "µs", "≤", 2.5),
    ("rate", "rate_core_share", "8 trainers × 90,000 tokens/s: share of a core", "%", "≤", 0.15),
    (
        "stalls",
        "stall_2s",
        "wait in a stall of 2 s ÷ what the ring's depth makes inevitable",
        "×",
        "≤",
        1.1,
    ),
    ("order", "window_ns_1", "position → window, one dataset", "ns", "≤", 60),
    ("order", "window_ns_8", "the same, 8 datasets", "ns", "≤", 100),
    ("order", "window_ns_1000", "the same, 1,000 datasets", "ns", "≤", 200),
    (
        "sessions",
        "sessions_64",
        "rate of 64 sessions ÷ (one session's × the daemon's share of a core)",
        "×",
        "≥",
        0.9,
    ),
    ("sessions", "fairness", "the slowest of 8 equal sessions ÷ the fastest", "×", "≥", 0.9),
    (
        "formats",
        "datasets",
        "windows/s ÷ those of flat files: Arrow as Hugging Face's datasets writes it",
        "×",
        "≥",
        0.95,
    ),
    ("formats", "arrow", "the same: Arrow with a record batch for each document", "×", "≥", 0.95),
    ("formats", "llmc", "the same: llm.c", "×", "≥", 0.95),
    ("formats", "mds", "the same: MDS", "×", "≥", 0.95),
    (
        "formats",
        "zstd_256k",
        "zstd, frames of 256 KiB: tokens a CPU second ÷ `zstd -d`",
        "×",
        "≥",
        1,
    ),
    ("formats", "inspect_deep", "speed of `tokctl inspect --deep` ÷ `cat`", "×", "≥", 0.9),
    ("gpu", "h2d", "copies to the GPU from the ring ÷ from torch's pinned memory", "×", "≥", 1),
    ("gpu", "gpu_step", "a training step ÷ a step on synthetic tokens", "×", "≤", 1.001),
)


def verdict(value, sense, limit):
    if (value >= limit) if sense == "≥" else (value <= limit):
        return "reached"
    share = value / limit if sense == "≥" else limit / value if value else 0
    return f"{share:.0%} of the way"


def why_not(part, ran, failed):
    if part == "gpu":
        return "needs a GPU: `make check-gpu`"
    if part in failed:
        return f"{part} failed: {failed[part]}"
    return f"{part} did not measure it" if part in ran else f"{part} was not run"


def table(figures, ran, failed):
    """Prints all goals. @figures: those measured; @ran: the parts; @failed: why parts failed."""
    print("\nGoals")
    print(f"  {'':<70}{'measured':>14}{'goal':>12}")
    for part, figure, text, unit, sense, limit in GOALS:
        goal = f"{sense} {limit:g} {unit}".rstrip()
        value = figures.get(figure)
        if value is None:
            measured, said = "–", "not measured: " + why_not(part, ran, failed)
        else:
            measured, said = f"{value:.3g} {unit}".rstrip(), verdict(value, sense, limit)
        print(f"  {text:<70}{measured:>14}{goal:>12}   {said}")
