//! The client library alone, as a worker: requests go straight to a `cheetah_client::Volume`, without a front
//! end.
//!
//! Owns: the generator, which lives where completions arrive, on the volume's data thread, so that asking
//! again wakes nobody. Never: another path than the program's own daemon has. Invariants: each 4 KiB block
//! begins with its own offset; a read that brings another fails the benchmark, and so does a donor that was
//! lost or replaced. Called by: `worker`.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use cheetah_client::{Caching, Client, Options, Tuning, Volume};
use cheetah_core::api::{Answer, Call};
use cheetah_rim::volume::{Completion, Op, Sink, Submission, VolumeHandle};
use serde_json::json;

use crate::bench::worker::{Load, Many, Server, take_orders};
use crate::load::{self, Done, Pattern};

const BLOCK_BYTES: usize = 4096;
const FILL_BYTES: usize = 1 << 20;

/// Attaches volumes, each with a data thread of its own, serves, detaches.
pub fn serve(pool: &str, connections: &str, poll_us: &str, volumes: &[&str]) {
    // A word stands for what the program does by itself.
    let connections = connections.parse().ok();
    let poll = poll_us.parse().map_or(Tuning::default().poll, Duration::from_micros);
    let tuning = Tuning { connections, poll, caching: Caching::OFF };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let pool = Client::new(pool).expect("the coordinator's URL");
    // As the program's daemon does; the memory counts in the same way then.
    let _ = cheetah_rim::memory::prepare();
    let attached: Vec<Volume> =
        volumes.iter().map(|name| runtime.block_on(open(&pool, name, tuning))).collect();
    // The runtime of the control plane turns on a thread of its own while this one waits for orders.
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let control = std::thread::spawn(move || {
        // An error means that the other end is gone, which is the same.
        let _ = runtime.block_on(stopped);
        runtime
    });
    let generators = (attached.iter().zip(0x2006..))
        .map(|(attached, seed)| Generator::new(attached.handle().clone(), seed))
        .collect();
    let size: u64 = attached.iter().map(Volume::size).sum();
    take_orders(Dealt(Many(generators)), &json!({"size": size}));
    drop(stop);
    let runtime = control.join().expect("the control plane's thread");
    for volume in attached {
        runtime.block_on(end(volume));
    }
}

/// Attaches a volume; a donor that is set aside makes the figures worthless.
async fn open(pool: &Client, name: &str, tuning: Tuning) -> Volume {
    let volume = Volume::open(pool, name, &Options { tuning, ..Options::default() }).await;
    let volume = volume.unwrap_or_else(|error| panic!("{error}"));
    let lost = volume.lost_donors().await;
    assert!(lost.is_empty(), "donors cannot be reached: {lost:?}");
    volume
}

/// Gives it back, and fails when a donor was lost meanwhile, or was replaced, which the map shows.
async fn end(volume: Volume) {
    let lost = volume.lost_donors().await;
    assert!(lost.is_empty(), "donors failed during the benchmark: {lost:?}");
    let lease = volume.lease();
    match lease.pool().call(Call::Show { name: lease.volume().to_owned() }).await {
        Ok(Answer::Volume(now)) => {
            assert_eq!(
                now.map.groups, lease.granted.map.groups,
                "a donor was set aside during the benchmark"
            );
        }
        other => panic!("the volume cannot be looked at: {other:?}"),
    }
    volume.detach().await.expect("the lease is given back");
}

/// Data threads side by side: all together have as many requests under way as one would have, but each has
/// one.
struct Dealt(Many<Generator>);

impl Server for Dealt {
    fn fill(&mut self) -> Result<(), String> {
        self.0.0.iter_mut().try_for_each(Server::fill)
    }

    fn run(&mut self, load: Load) -> Result<Done, String> {
        self.0.run(Load { depth: load.depth.div_ceil(self.0.0.len()), ..load })
    }
}

/// Keeps requests in flight.
struct Generator(Arc<Pump>);

/// Where completions arrive and the next requests leave.
struct Pump {
    volume: VolumeHandle,
    run: Mutex<Run>,
    ended: Condvar,
    this: Weak<Pump>,
}

/// The run that is under way.
#[derive(Debug)]
struct Run {
    load: Load,
    blocks: u64,
    asked: u64,
    asked_max: u64,
    answered: u64,
    in_flight: usize,
    until: Instant,
    seed: u64,
    asked_at: Instant,
    latencies: Vec<Duration>,
    failed: Option<String>,
}

impl fmt::Debug for Pump {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pump").finish_non_exhaustive()
    }
}

impl Generator {
    fn new(volume: VolumeHandle, seed: u64) -> Self {
        let load = Load { pattern: Pattern::RandomRead, block: BLOCK_BYTES, depth: 0, time: Duration::ZERO };
        let run = Run {
            load,
            blocks: 0,
            asked: 0,
            asked_max: 0,
            answered: 0,
            in_flight: 0,
            until: Instant::now(),
            seed,
            asked_at: Instant::now(),
            latencies: Vec::new(),
            failed: None,
        };
        Self(Arc::new_cyclic(|this| Pump {
            volume,
            run: Mutex::new(run),
            ended: Condvar::new(),
            this: this.clone(),
        }))
    }

    /// Until the time is over, or so many were asked.
    fn pump(&self, load: Load, asked_max: u64) -> Result<Done, String> {
        let pump = &self.0;
        let mut buffers: Vec<_> = Vec::new();
        for _ in 0..load.depth {
            let mut buffer = pump.volume.pool().try_take(load.block).ok_or("the pool has too few buffers")?;
            if load.pattern == Pattern::SequentialWrite {
                buffer.copy_from_slice(&load::pattern_bytes(load.block));
            }
            buffers.push(buffer);
        }
        let start = Instant::now();
        let mut run = pump.lock();
        *run = Run {
            load,
            blocks: pump.volume.size() / load.block as u64,
            asked: 0,
            asked_max,
            answered: 0,
            in_flight: 0,
            until: start + load.time,
            seed: run.seed,
            asked_at: start,
            latencies: Vec::new(),
            failed: None,
        };
        for buffer in buffers {
            pump.ask(&mut run, buffer);
        }
        while run.in_flight > 0 {
            run = pump.ended.wait(run).unwrap_or_else(PoisonError::into_inner);
        }
        let (requests, took) = (run.answered, start.elapsed());
        match run.failed.take() {
            Some(why) => Err(why),
            None => {
                let median = load::median(&mut run.latencies);
                Ok(Done { requests, bytes: requests * load.block as u64, took, median })
            }
        }
    }
}

impl Server for Generator {
    fn fill(&mut self) -> Result<(), String> {
        let time = Duration::from_secs(600);
        let load = Load { pattern: Pattern::SequentialWrite, block: FILL_BYTES, depth: 16, time };
        self.pump(load, self.0.volume.size() / FILL_BYTES as u64).map(drop)
    }

    fn run(&mut self, load: Load) -> Result<Done, String> {
        self.pump(load, u64::MAX)
    }
}

impl Pump {
    fn lock(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next request, in the buffer of one that is done; none when the run is over.
    fn ask(&self, run: &mut Run, mut buffer: cheetah_rim::buffer::Buffer) {
        let now = Instant::now();
        if now >= run.until || run.asked >= run.asked_max || run.failed.is_some() {
            return;
        }
        let number = match run.load.pattern {
            Pattern::RandomRead => {
                run.seed = load::next_random(run.seed);
                (run.seed >> 16) % run.blocks
            }
            Pattern::SequentialRead | Pattern::SequentialWrite => run.asked % run.blocks,
        };
        let offset = number * run.load.block as u64;
        let op = if run.load.pattern == Pattern::SequentialWrite { Op::Write } else { Op::Read };
        if op == Op::Write {
            for (index, block) in buffer.chunks_exact_mut(BLOCK_BYTES).enumerate() {
                block[..8].copy_from_slice(&mark(offset, index));
            }
        }
        let Some(sink) = self.this.upgrade() else { return };
        run.asked += 1;
        run.in_flight += 1;
        run.asked_at = now;
        let len = run.load.block as u32;
        self.volume.submit(Submission { op, offset, len, buffer: Some(buffer), token: offset, sink });
    }

    fn check(&self, run: &mut Run, completion: &Completion) {
        if let Err(error) = &completion.result {
            run.failed = Some(format!("a request at {} failed: {error:?}", completion.token));
        }
        let (Some(buffer), false) = (&completion.buffer, run.load.pattern == Pattern::SequentialWrite) else {
            return;
        };
        let wrong = |(index, block): (usize, &[u8])| block[..8] != mark(completion.token, index);
        if buffer.chunks_exact(BLOCK_BYTES).enumerate().any(wrong) {
            run.failed = Some(format!("what was read at {} is not what was written there", completion.token));
        }
    }
}

/// What the block that is so far behind an offset begins with; never zero.
fn mark(offset: u64, index: usize) -> [u8; 8] {
    (offset + (index * BLOCK_BYTES) as u64 + 1).to_le_bytes()
}

impl Sink for Pump {
    fn complete(&self, completion: Completion) {
        let mut run = self.lock();
        run.in_flight -= 1;
        run.answered += 1;
        if run.load.depth == 1 {
            let latency = run.asked_at.elapsed();
            run.latencies.push(latency);
        }
        self.check(&mut run, &completion);
        if let Some(buffer) = completion.buffer {
            self.ask(&mut run, buffer);
        }
        if run.in_flight == 0 {
            self.ended.notify_all();
        }
    }
}
