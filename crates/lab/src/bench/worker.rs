//! Children of the benchmark that make its loads: this program run again, or a foreign client, so that the
//! processor time of each end is known and a load can run on a host of a lab.
//!
//! Owns: the children's lives, and the lines between them: an order (`sequential-read 1048576 16 800`:
//! pattern, block, depth, milliseconds; or `fill`) in, one line of JSON out. Never: measures by itself.
//! Invariant: a child ends with its guard, and by itself when the benchmark is gone and its input closes.
//! Called by: the parts of the benchmark; `child` and the loads, which are the other end. Tests: below, and
//! those of the loads.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::rounds::Turn;
use crate::lan::{Lan, Node};
use crate::load::{Connection, Done, Pattern};
use crate::{mark, process};

/// The first argument of a child.
pub const WORKER: &str = "worker";

/// What to ask for, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    pub pattern: Pattern,
    pub block: usize,
    pub depth: usize,
    pub time: Duration,
}

impl fmt::Display for Load {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = match self.pattern {
            Pattern::RandomRead => "random-read",
            Pattern::SequentialRead => "sequential-read",
            Pattern::SequentialWrite => "sequential-write",
        };
        write!(formatter, "{pattern} {} {} {}", self.block, self.depth, self.time.as_millis())
    }
}

impl Load {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let pattern = match words.next()? {
            "random-read" => Pattern::RandomRead,
            "sequential-read" => Pattern::SequentialRead,
            "sequential-write" => Pattern::SequentialWrite,
            _ => return None,
        };
        let mut number = || words.next()?.parse().ok();
        let (block, depth, time) = (number()?, number()?, number()?);
        Some(Self { pattern, block, depth, time: Duration::from_millis(time as u64) })
    }
}

/// What a child did, as it tells.
#[derive(Clone, Copy, Debug)]
pub struct Did {
    pub done: Done,
    /// Of the child's own processor time.
    pub cpu: Duration,
}

impl Did {
    fn to_json(self) -> Value {
        let Done { requests, bytes, took, median } = self.done;
        json!({"requests": requests, "bytes": bytes, "seconds": took.as_secs_f64(),
               "median": median.as_secs_f64(), "cpu": self.cpu.as_secs_f64()})
    }

    fn from_json(told: &Value) -> Option<Self> {
        let seconds =
            |name: &str| told[name].as_f64().and_then(|time| Duration::try_from_secs_f64(time).ok());
        let done = Done {
            requests: told["requests"].as_u64()?,
            bytes: told["bytes"].as_u64()?,
            took: seconds("seconds")?,
            median: seconds("median")?,
        };
        Some(Self { done, cpu: seconds("cpu")? })
    }
}

/// A child that takes orders.
#[derive(Debug)]
pub struct Worker {
    name: String,
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// What its first line told.
    pub ready: Value,
}

impl Worker {
    /// This program again, as a worker of this kind.
    #[track_caller]
    pub fn start(kind: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
        command.arg(WORKER).args(kind);
        Self::of(command)
    }

    /// The same on a host of a lab.
    #[track_caller]
    pub fn start_on(lan: &Lan, node: Node, kind: &[&str]) -> Self {
        let mut command = lan.exec(node, std::env::current_exe().expect("the path of this program"));
        command.arg(WORKER).args(kind);
        Self::of(command)
    }

    /// Any program that speaks these lines.
    #[track_caller]
    pub fn of(mut command: Command) -> Self {
        let name = format!("{command:?}");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).env(mark::VARIABLE, mark::own());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("a pipe from the child"));
        let mut worker = Self { name, child, orders, answers, ready: Value::Null };
        worker.ready = worker.answer();
        worker
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[track_caller]
    fn answer(&mut self) -> Value {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        let answer = read.ok().and_then(|_| serde_json::from_str(&line).ok());
        answer.unwrap_or_else(|| panic!("{} said {line:?} where it owed an answer", self.name))
    }

    /// Gives an order and waits for what it says to it.
    #[track_caller]
    pub fn ask(&mut self, order: &str) -> Value {
        let sent = self.orders.as_mut().map(|pipe| writeln!(pipe, "{order}").and_then(|()| pipe.flush()));
        assert!(matches!(sent, Some(Ok(()))), "{} takes no orders any more", self.name);
        self.answer()
    }

    /// Writes the whole of what it is connected to once.
    #[track_caller]
    pub fn fill(&mut self) {
        self.ask("fill");
    }

    /// Makes a load; the processor time of these processes counts beside its own.
    #[track_caller]
    pub fn load(&mut self, load: Load, servers: &[u32]) -> Measured {
        let cpu = || servers.iter().map(|pid| process::cpu_time(*pid)).sum::<Duration>();
        let before = cpu();
        let told = self.ask(&load.to_string());
        let did = Did::from_json(&told).unwrap_or_else(|| panic!("{} told {told}", self.name));
        assert!(did.done.requests > 0, "{} did nothing: {told}", self.name);
        Measured { done: did.done, cpu: did.cpu + cpu().saturating_sub(before) }
    }

    /// Ends it as its user would, so that it lets go of what it has.
    #[track_caller]
    pub fn end(mut self) {
        drop(self.orders.take());
        let ended = self.child.wait();
        assert!(ended.is_ok_and(|status| status.success()), "{} ended badly", self.name);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // One that has ended by itself is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A load with the processor time of both its ends.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub done: Done,
    pub cpu: Duration,
}

impl Measured {
    fn turn(&self, value: f64) -> Turn {
        Turn { value, cpu_per_gb: self.cpu.as_secs_f64() / (self.done.bytes as f64 / 1e9) }
    }

    pub fn gb_per_second(&self) -> Turn {
        self.turn(self.done.bytes_per_second() / 1e9)
    }

    pub fn kiops(&self) -> Turn {
        self.turn(self.done.per_second() / 1e3)
    }

    pub fn median_us(&self) -> Turn {
        self.turn(self.done.median.as_secs_f64() * 1e6)
    }
}

/// What a child connects to.
pub trait Server {
    /// Writes all of it once.
    fn fill(&mut self) -> Result<(), String>;
    fn run(&mut self, load: Load) -> Result<Done, String>;
}

impl Server for Connection {
    fn fill(&mut self) -> Result<(), String> {
        Connection::fill(self).map_err(|error| error.to_string())
    }

    fn run(&mut self, load: Load) -> Result<Done, String> {
        self.run_for(load.pattern, load.block, load.depth, load.time).map_err(|error| error.to_string())
    }
}

/// Many of a kind, each with a thread and a load of its own.
pub struct Many<S>(pub Vec<S>);

impl<S: Server + Send> Server for Many<S> {
    fn fill(&mut self) -> Result<(), String> {
        self.0.first_mut().map_or(Ok(()), Server::fill)
    }

    fn run(&mut self, load: Load) -> Result<Done, String> {
        let done: Result<Vec<Done>, String> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.0.iter_mut().map(|server| scope.spawn(move || server.run(load))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread ends")).collect()
        });
        let done = done?;
        let took = done.iter().map(|done| done.took).max().unwrap_or_default();
        let mut medians: Vec<Duration> = done.iter().map(|done| done.median).collect();
        Ok(Done {
            requests: done.iter().map(|done| done.requests).sum(),
            bytes: done.iter().map(|done| done.bytes).sum(),
            took,
            median: crate::load::median(&mut medians),
        })
    }
}

/// Takes orders from standard input until it closes.
pub fn take_orders(mut server: impl Server, ready: &Value) {
    orders(ready, |line| {
        if line == "fill" {
            server.fill()?;
            return Ok(json!({}));
        }
        let load = Load::parse(line).ok_or_else(|| format!("no such order: {line}"))?;
        let before = own_cpu();
        let done = server.run(load)?;
        Ok(Did { done, cpu: own_cpu().saturating_sub(before) }.to_json())
    });
}

/// Answers each line of standard input. What goes wrong ends the child; its end says so to the benchmark.
#[allow(clippy::print_stdout, reason = "standard output is where the benchmark listens")]
pub fn orders(ready: &Value, mut answer: impl FnMut(&str) -> Result<Value, String>) {
    println!("{ready}");
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        match answer(&line) {
            Ok(said) => println!("{said}"),
            Err(error) => panic!("{line}: {error}"),
        }
    }
}

/// Processor time of this process, to the nanosecond.
pub fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_answers_are_read_as_they_were_written() {
        let time = Duration::from_millis(800);
        for pattern in [Pattern::RandomRead, Pattern::SequentialRead, Pattern::SequentialWrite] {
            let load = Load { pattern, block: 4096, depth: 64, time };
            assert_eq!(Load::parse(&load.to_string()), Some(load));
        }
        assert_eq!(Load::parse("fill"), None);
        let done = Done { requests: 3, bytes: 12_288, took: time, median: Duration::from_micros(50) };
        let told = Did { done, cpu: time }.to_json();
        let back = Did::from_json(&told).expect("an answer");
        assert_eq!((back.done.requests, back.done.took, back.cpu), (3, time, time));
        assert!(Did::from_json(&json!({"requests": 3})).is_none());
    }

    #[test]
    fn a_child_answers_and_ends() {
        let mut command = crate::tools::command("sh");
        command.args([
            "-c",
            "echo '{\"is\": \"up\"}'; while read line; do echo \"{\\\"said\\\": \\\"$line\\\"}\"; done",
        ]);
        let mut worker = Worker::of(command);
        assert_eq!(worker.ready["is"], "up");
        assert_eq!(worker.ask("fill")["said"], "fill");
        worker.end();
    }
}
