//! `make bench`: Cheetah beside its peers and the physical limits. `bench [--quick] [--json] [PART]...`;
//! QUICK=1 shortens. The parts of `make bench-codes`, `bench-repair` and `bench-owner` are measured only
//! where they are named.
//!
//! Prints a Markdown table, and writes `results.json`, `table.md` and plots beside what was built. Ends with
//! 0 when every bar was met, 1 when one was missed, 3 when the machine was too noisy to say, 128 and a
//! signal's number when that ended it: then nothing that it started is left.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    cheetah_lab::bench::main()
}
