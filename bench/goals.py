"""The goals of the benchmark: a figure that a part of run.py returns, what it means, its limit.

A goal is a ratio of two contestants of the same run where it can be one: ratios depend less on the
machine. table() says of each goal whether it was reached, or how far the run was from it.
"""

# part of run.py | figure | limit | unit | text
TABLE = """
contest | hot_inthread    | ≥ 5   | × | hot tokens/s, int64 ÷ the best loader without workers
contest | hot_torch       | ≥ 5   | × | the same ÷ torch's DataLoader, then the best
contest | hot_workers     | ≥ 80  | × | hot tokens/s, int64 ÷ the best loader with workers
contest | busy_inthread   | ≥ 3   | × | with every core busy ÷ the best without workers
contest | busy_torch      | ≥ 3   | × | the same ÷ torch's DataLoader without workers
contest | busy_workers    | ≥ 50  | × | with every core busy ÷ the best with workers
contest | int32           | ≥ 8   | × | into int32 ÷ the best int64 loader without workers
contest | c_fio           | ≥ 0.8 | × | C client, stored width ÷ fio's hot random reads, io_uring
cold | cold_fio           | ≥ 0.9 | × | cold random windows ÷ fio's direct reads
cold | device_direct      | ≤ 1.1 |   | device bytes per byte delivered, direct
cold | device_buffered    | ≤ 2   |   | the same, buffered
contest | cpu_all         | ≤ 0.35 | × | CPU of all processes a token ÷ torch without workers
contest | cpu_thread      | ≤ 0.2 | × | CPU of the trainer's thread a token ÷ the same
memory | memory_8         | ≤ 0.2 | × | 8 trainers: private + shared ÷ torch's
memory | memory_growth    | ≤ 1.1 | × | the daemon without rings: with 8 trainers ÷ with one
starts | start_running_ms_1e8 | ≤ 5 | ms | torch imported → first batch, 10⁸ samples, daemon runs
starts | start_running_ms_1e10 | ≤ 5 | ms | the same, 10¹⁰ samples
starts | start_cold_ms_1e8 | ≤ 40 | ms | torch imported → first batch, 10⁸ samples, no daemon
starts | start_cold_ms_1e10 | ≤ 40 | ms | the same, 10¹⁰ samples
steps | step_p50_us       | ≤ 15  | µs | all of next() in steps of 20 ms, p50
steps | step_p999_us      | ≤ 60  | µs | the same, p99.9
steps | step_max_us       | ≤ 400 | µs | the same, the longest
ready | next_c_ns         | ≤ 30  | ns | a ready next() in C
ready | next_python_us    | ≤ 20  | µs | a ready next() in Python: input_ids and labels
stalls | stall_2s         | ≤ 1.1 | × | wait in a stall of 2 s ÷ what the ring makes inevitable
rate | rate_core_share    | ≤ 0.15 | % | 8 trainers × 90,000 tokens/s: share of a core
order | window_ns_1       | ≤ 60  | ns | position → window, one dataset
order | window_ns_8       | ≤ 100 | ns | the same, 8 datasets
order | window_ns_1000    | ≤ 200 | ns | the same, 1,000 datasets
growth | sessions_64      | ≥ 0.9 | × | 64 sessions ÷ (one × the daemon's share of a core)
growth | fairness         | ≥ 0.9 | × | the slowest of 8 equal sessions ÷ the fastest
formats | datasets        | ≥ 0.95 | × | windows/s ÷ flat files': Arrow of Hugging Face's datasets
formats | arrow           | ≥ 0.95 | × | the same: Arrow with a record batch for each document
formats | llmc            | ≥ 0.95 | × | the same: llm.c
formats | mds             | ≥ 0.95 | × | the same: MDS
formats | zstd_256k       | ≥ 1   | × | zstd, frames of 256 KiB: tokens a CPU second ÷ `zstd -d`
formats | inspect_deep    | ≥ 0.9 | × | speed of `tokctl inspect --deep` ÷ `cat`
gpu | h2d                 | ≥ 1   | × | copies to the GPU from the ring ÷ from torch's pinned memory
gpu | gpu_step            | ≤ 1.001 | × | a training step ÷ a step on synthetic tokens
"""


def goals():
    """Yields (part, figure, text, unit, "≥" or "≤", limit)."""
    for line in TABLE.strip().splitlines():
        part, figure, goal, unit, text = (cell.strip() for cell in line.split("|"))
        sense, limit = goal.split()
        yield part, figure, text, unit, sense, float(limit)


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
    """All goals as text. @figures: those measured; @ran: the parts; @failed: why parts failed."""
    lines = ["", "Goals", f"  {'':<60}{'measured':>10}{'goal':>10}"]
    for part, figure, text, unit, sense, limit in goals():
        value, goal = figures.get(figure), f"{sense} {limit:g} {unit}".rstrip(" ×")
        if value is None:
            measured, said = "–", "not measured: " + why_not(part, ran, failed)
        else:
            measured, said = f"{value:.3g} {unit}".rstrip(" ×"), verdict(value, sense, limit)
        lines.append(f"  {text:<60}{measured:>10}{goal:>10}  {said}")
    return "\n".join(lines) + "\n"
