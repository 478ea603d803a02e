// What `qwen serve` starts as its agent, for make bench. It starts scripts of Node only, so this one becomes the
// agent that all daemons are measured with: the process stays, the program in it changes.
const { BENCH_PYTHON, BENCH_AGENT } = process.env;
process.execve(BENCH_PYTHON, [BENCH_PYTHON, BENCH_AGENT], process.env);
