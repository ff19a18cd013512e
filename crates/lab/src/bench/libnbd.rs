//! libnbd as a peer of the client library: a small C program that is compiled when the benchmark starts.
//! Never: a dependency of the product. Called by: the parts that compare with libnbd. Tests: below.

use crate::bench::worker::Worker;
use crate::scratch::Scratch;
use crate::tools;

const SOURCE: &str = include_str!("libnbd_load.c");

/// The compiled program.
#[derive(Debug)]
pub struct Libnbd(Scratch);

impl Libnbd {
    #[track_caller]
    pub fn compile() -> Self {
        let scratch = Scratch::new();
        let source = scratch.file("libnbd_load.c", SOURCE.as_bytes());
        let mut compiler = tools::command("cc");
        compiler.args(["-std=gnu11", "-O2", "-Wall", "-Werror", "-o"]).arg(scratch.join("libnbd_load"));
        tools::expect_success(compiler.arg(source).args(["-lnbd", "-lpthread"]));
        Self(scratch)
    }

    /// A worker over so many connections, each with a thread of its own. A sequential load of no time asks
    /// for every block once.
    #[track_caller]
    pub fn worker(&self, uri: &str, connections: usize) -> Worker {
        let mut command = std::process::Command::new(self.0.join("libnbd_load"));
        command.arg(uri).arg(connections.to_string());
        Worker::of(command)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::worker::Load;
    use crate::load::Pattern;
    use crate::rivals::Rival;

    #[test]
    fn it_fills_reads_and_tells() {
        let server = Rival::nbdkit(&["memory", "8M"]);
        let program = Libnbd::compile();
        for connections in [1, 2] {
            let mut worker = program.worker(&server.uri, connections);
            worker.fill();
            let time = Duration::from_millis(50);
            for (pattern, block, depth) in [
                (Pattern::RandomRead, 4096, 1),
                (Pattern::SequentialRead, 1 << 20, 4),
                (Pattern::SequentialWrite, 65_536, 4),
            ] {
                let told = worker.load(Load { pattern, block, depth, time }, &[server.process.pid()]);
                assert_eq!(told.done.bytes, told.done.requests * block as u64);
                assert_eq!(told.done.median > Duration::ZERO, depth == 1);
                assert!(told.done.took >= time);
            }
            let (pattern, block, time) = (Pattern::SequentialRead, 65_536, Duration::ZERO);
            assert_eq!(worker.load(Load { pattern, block, depth: 4, time }, &[]).done.bytes, 8 << 20);
            worker.end();
        }
        let data = tools::run("qemu-io", ["-r", "-f", "raw", "-c", "read -P 1 0 1", &server.uri]);
        assert!(data.contains("read 1/1 bytes"), "the fill wrote something: {data}");
    }
}
