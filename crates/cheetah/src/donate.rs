//! `cheetah donate`: lend memory, or another NBD server's space, to a pool; or serve it alone. (`disk` lends
//! disks.) Owns: how much is lent, what it is called, starting and ending. Never: data or decisions.

use crate::cli;
use crate::cli_serving;
use crate::disk;
use crate::drain::{farewell, told_to_leave};
use crate::failure::{self, Failure};
use crate::members;
use crate::mover::tend_what_lies_idle;
use crate::output;
use crate::pool::{check_clear, parse_listen, unnamed};
use crate::signals::Signals;
use cheetah_core::api::{Call, RefusalCode};
use cheetah_core::donor::Exit;
use cheetah_core::donor::owner::{self, Owner, Sample, Terms};
use cheetah_core::limits::{DONOR_EXTENTS_MAX, DONOR_MEMORY_EXTENTS_MAX, EXTENT_BYTES};
use cheetah_core::map::Medium;
use cheetah_core::units::{check_name, parse_bytes, show_bytes};
use cheetah_nbd::uri::{Tls, Transport, Uri};
use cheetah_rim::arena::Arena;
use cheetah_rim::collapse::Collapsing;
use cheetah_rim::control::{
    CallError, Client, DonorControl, DonorHandle, DonorHooks, DonorOptions, find_pool, reached_from,
};
use cheetah_rim::donor::{DonorServer, Gate};
use cheetah_rim::net::{Bound, Endpoint};
use cheetah_rim::own_fault::own_fault;
use cheetah_rim::owner::{Machine, Memory, go_first, yield_to_owner};
use cheetah_rim::stream;
use cheetah_rim::swap::{self, Kept};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

pub async fn donate(options: cli_serving::Donate) -> Result<(), Failure> {
    match (&options.size, options.disk.is_empty()) {
        (None, true) => Err(Failure::usage("say what to lend: how much memory, or --disk PATH:SIZE")),
        (Some(_), true) => donate_memory(options).await,
        (_, false) => disk::donate(options).await,
    }
}

pub(crate) async fn donate_memory(options: cli_serving::Donate) -> Result<(), Failure> {
    if size_of(&options).starts_with("nbd") {
        return donate_foreign(options).await;
    }
    let machine = Machine::own();
    let terms = terms(&options, &machine)?;
    let extents = terms.extents_max;
    let who = Who::own(&options)?;
    // In this order: afterwards what a process has under /proc belongs to root.
    go_first();
    cheetah_rim::memory::forbid_dumps();
    let lent = Lent::new(extents)?;
    parse_bytes(size_of(&options))
        .ok()
        .and_then(|asked| left_over(asked, &lent.bytes()))
        .iter()
        .for_each(|why| output::note(why));
    match options.no_pool {
        true => donate_alone(&options, &who.name, extents, lent).await,
        false => donate_to_pool(options, who, machine, terms, lent).await,
    }
}

/// What was asked for; nothing where only disks are lent.
fn size_of(options: &cli_serving::Donate) -> &str {
    options.size.as_deref().unwrap_or_default()
}

/// Memory that is there to be lent.
struct Lent {
    arena: Arc<Arena>,
    kept: Kept,
}

impl Lent {
    fn new(extents: u32) -> Result<Lent, Failure> {
        let arena = Arena::new(extents).map_err(|e| {
            Failure::failed(format!(
                "the kernel does not give {}: {}",
                show_bytes(u64::from(extents) * EXTENT_BYTES),
                own_fault(&e)
            ))
        })?;
        let kept = swap::keep_arena(&arena);
        Ok(Lent { arena: Arc::new(arena), kept })
    }

    /// For people.
    fn bytes(&self) -> String {
        show_bytes(self.arena.bytes())
    }

    fn serve(
        &self,
        bound: Bound,
        gate: &Gate,
        transport: &stream::Transport,
    ) -> Result<DonorServer, Failure> {
        DonorServer::start(bound, &self.arena, gate, transport).map_err(Failure::failed)
    }
}

/// For everybody, until it is told to end.
async fn donate_alone(
    options: &cli_serving::Donate,
    name: &str,
    extents: u32,
    lent: Lent,
) -> Result<(), Failure> {
    let listen = options.listen.as_deref().unwrap_or("127.0.0.1:0");
    let endpoint: Endpoint = listen.parse().map_err(Failure::usage)?;
    let bound = Bound::new(&endpoint).map_err(Failure::failed)?;
    let server = lent.serve(bound, &Gate::alone(extents), &stream::Transport::default())?;
    if let Endpoint::Tcp(address) = server.endpoint() {
        check_clear("data", *address, false)?;
    }
    let mut signals = Signals::listen()?;
    let endpoint = server.endpoint();
    output::ready(&format!("donor {name} lends {} at {endpoint} without a pool", lent.bytes()));
    output::aside(&lent.kept.to_string());
    tokio::select! {
        _ = signals.next() => Ok(()),
        never = Collapsing::new(lent.arena).go_on_always() => match never {},
    }
}

/// Until it is told to end, dismissed or refused, or its machine's owner needs the memory at once.
async fn donate_to_pool(
    options: cli_serving::Donate,
    who: Who,
    machine: Machine,
    terms: Terms,
    lent: Lent,
) -> Result<(), Failure> {
    let given = options.listen.as_deref().map(parse_listen).transpose()?;
    let mut signals = Signals::listen()?;
    let Some(pool) = find_in_time(&options.pool, &mut signals).await? else { return Ok(()) };
    // Bound first: a donor joins with the address at which it is reached.
    let (bound, address) = bound(given, &pool).await?;
    let (wiped, counted) = (lent.arena.clone(), lent.arena.clone());
    let hooks = DonorHooks {
        wipe: Arc::new(move |extents| {
            wiped.wipe(extents);
            Ok(())
        }),
        bytes_used: Arc::new(move || counted.bytes_used()),
        keep: None,
    };
    let (control, handle) = control(who, address, terms.extents_max, None, pool.clone(), hooks)?;
    lent.serve(bound, &Gate::Pooled(handle.clone()), &pool.transport())?;
    let lends = format!("lends {} at {address}", lent.bytes());
    let Lent { arena, kept } = lent;
    let called = handle.called();
    let owned = yield_to_owner(machine, Owner::new(terms), arena, handle.clone());
    let moving = tokio::spawn(tend_what_lies_idle(pool.clone(), handle.clone()));
    let ended = tokio::select! {
        ended = run(control, handle, signals, pool.url(), &lends, Some(&kept), options.no_drain) => ended,
        // Without a goodbye, or waiting for anything: others notice a closed connection soon enough.
        sample = owned => outrun(&called.borrow(), &sample).end_now(),
    };
    // It ends with the donor, and gives back the leases that it has.
    if moving.await.is_err() {
        tracing::warn!("what moved volumes that nobody writes had ended already");
    }
    ended
}

/// Where a donor of the pool listens: as `--listen` says, or at any port of the address by which this machine
/// reaches the pool.
pub(crate) async fn bound(given: Option<SocketAddr>, pool: &Client) -> Result<(Bound, SocketAddr), Failure> {
    let listen = match given {
        Some(given) => given,
        None => SocketAddr::new(reached_from(pool).await?, 0),
    };
    let bound = Bound::new(&Endpoint::Tcp(listen)).map_err(Failure::failed)?;
    let Endpoint::Tcp(address) = bound.endpoint else {
        return Err(Failure::usage("--listen takes IP:PORT here"));
    };
    check_clear("data", address, pool.credentials().is_some())?;
    Ok((bound, address))
}

/// A donor's memory is free when its process has ended, and not before.
fn outrun(name: &str, sample: &Sample) -> Failure {
    Failure::failed(format!(
        "donor {name} ends to free {} for its machine's owner: memory runs out faster than data can be moved away ({} \
         were left). For the pool it is a donor that died: `cheetah status` shows what is rebuilt elsewhere. Start it \
         again when there is memory; a larger --reserve leaves more time to move data",
        show_bytes(sample.used_bytes),
        show_bytes(sample.available_bytes)
    ))
}

/// Between two looks whether the pool is there.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Why there is no pool to lend to.
enum Missing {
    /// It may come.
    Yet(String),
    /// Waiting would help nobody.
    ForGood(Failure),
}

impl From<CallError> for Missing {
    fn from(error: CallError) -> Self {
        match &error {
            CallError::Unreachable { .. } | CallError::NoLeader { .. } => Missing::Yet(error.to_string()),
            CallError::Refused(refusal)
                if matches!(refusal.code, RefusalCode::Unavailable | RefusalCode::Standby) =>
            {
                Missing::Yet(refusal.message.clone())
            }
            _ => Missing::ForGood(error.into()),
        }
    }
}

/// The pool, once it answers: machines start in any order. It is said that it is waited for, or a mistyped
/// one would look like one that something is lent to. `None`: told to end meanwhile.
pub(crate) async fn find_in_time(
    pool: &cli::PoolArg,
    signals: &mut Signals,
) -> Result<Option<Client>, Failure> {
    let waiting = async {
        let mut said = false;
        loop {
            match look_for(pool).await {
                Ok(pool) => return Ok(Some(pool)),
                Err(Missing::ForGood(failure)) => return Err(failure),
                Err(Missing::Yet(why)) if !std::mem::replace(&mut said, true) => {
                    output::note(&format!("waiting for the pool, looking each second until Ctrl-C: {why}"));
                    output::waits(&format!("waiting for the pool: {why}"));
                }
                Err(Missing::Yet(_)) => {}
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    };
    tokio::select! {
        found = waiting => found,
        _ = signals.next() => Ok(None),
    }
}

async fn look_for(pool: &cli::PoolArg) -> Result<Client, Missing> {
    if let Some(url) = members::named(pool).map_err(Missing::ForGood)? {
        return look_at(&url).await;
    }
    Err(Missing::ForGood(unnamed(find_pool().await)))
}

async fn look_at(url: &str) -> Result<Client, Missing> {
    let client = members::client(url).await.map_err(|failure| match failure.exit {
        failure::Exit::NoPool => Missing::Yet(failure.text()),
        _ => Missing::ForGood(failure),
    })?;
    client.call(Call::Pool).await?;
    Ok(client)
}

fn control(
    who: Who,
    listen: SocketAddr,
    extents: u32,
    foreign_export: Option<String>,
    pool: Client,
    hooks: DonorHooks,
) -> Result<(DonorControl, DonorHandle), Failure> {
    let Who { name, or_numbered, host, machine } = who;
    let medium = Medium::Memory;
    let keeps_auths = false;
    let options = DonorOptions {
        name,
        or_numbered,
        host,
        machine,
        listen,
        extents,
        foreign_export,
        medium,
        keeps_auths,
    };
    DonorControl::new(options, pool, hooks)
        .map_err(|e| Failure::failed(format!("cannot start the donor: {e}")))
}

/// Keeps the donor in its pool until it is told to end, dismissed or refused.
async fn run(
    control: DonorControl,
    mut handle: DonorHandle,
    mut signals: Signals,
    pool: &str,
    lends: &str,
    kept: Option<&Kept>,
    no_drain: bool,
) -> Result<(), Failure> {
    let (ending, parting) = (handle.clone(), handle.clone());
    let mut running = tokio::spawn(control.run());
    let exit = tokio::select! {
        exit = &mut running => exit,
        () = async {
            let joined = tokio::select! {
                joined = handle.joined() => joined,
                // It holds nothing yet that others would have to take.
                _ = signals.next() => return ending.terminate(),
            };
            if joined.is_some() {
                let called = handle.called().borrow().clone();
                output::ready(&format!("donor {called} {lends} to pool {pool}"));
                kept.iter().for_each(|kept| output::aside(&kept.to_string()));
            }
            told_to_leave(signals, &ending, pool, no_drain).await;
        } => running.await,
    };
    farewell(&parting);
    match exit.map_err(|e| Failure::failed(format!("the donor's control loop failed: {e}")))? {
        Exit::Terminated => Ok(()),
        Exit::Dismissed => {
            output::line("the pool let this donor go; its memory is wiped");
            Ok(())
        }
        Exit::Refused(refusal) => Err(refusal.into()),
    }
}

/// How many extents there are to lend, and what was agreed with the owner.
fn terms(options: &cli_serving::Donate, machine: &Machine) -> Result<Terms, Failure> {
    let Memory { total_bytes: total, available_bytes: available } =
        machine.memory().map_err(Failure::failed)?;
    let auto = size_of(options) == "auto";
    let reserve_of = if auto { owner::reserve_of_auto } else { owner::reserve_of_size };
    let reserve = options.reserve.unwrap_or_else(|| reserve_of(total));
    let bytes = match (auto, options.max) {
        (true, Some(max)) => max,
        (true, None) => available.saturating_sub(reserve),
        (false, None) => parse_bytes(size_of(options)).map_err(Failure::usage)?,
        (false, Some(_)) => {
            return Err(Failure::usage(format!(
                "'{}' is the most that is lent: --max goes with `auto`",
                size_of(options)
            )));
        }
    };
    let least = show_bytes(EXTENT_BYTES);
    match bytes {
        0..EXTENT_BYTES if auto && options.max.is_none() => Err(Failure::failed(format!(
            "this machine has {} available, of which its owner needs {}: nothing to lend; lower --reserve, or name \
             a --max to lend when there is more",
            show_bytes(available),
            show_bytes(reserve)
        ))),
        0..EXTENT_BYTES => Err(Failure::usage(format!(
            "'{}' is less than the smallest loan, {least}",
            options.max.map_or_else(|| size_of(options).to_owned(), show_bytes)
        ))),
        _ if !auto && bytes > available => Err(Failure::failed(format!(
            "{} is more than this machine has: {} of {} are available; lend less, or `auto`",
            show_bytes(bytes),
            show_bytes(available),
            show_bytes(total)
        ))),
        _ => {
            let extents = u32::try_from(bytes / EXTENT_BYTES).unwrap_or(u32::MAX);
            Ok(Terms { extents_max: extents.min(DONOR_MEMORY_EXTENTS_MAX), reserve_bytes: reserve })
        }
    }
}

/// What is said of a size that is no whole number of extents.
fn left_over(asked: u64, lent: &str) -> Option<String> {
    let (is_whole, extent) = (asked.is_multiple_of(EXTENT_BYTES), show_bytes(EXTENT_BYTES));
    (!is_whole).then(|| {
        format!("memory is lent in whole extents of {extent}: of {} that is {lent}", show_bytes(asked))
    })
}

/// What the donor is called, and what it goes down with.
pub(crate) struct Who {
    pub(crate) name: String,
    pub(crate) or_numbered: bool,
    pub(crate) host: String,
    pub(crate) machine: String,
}

/// A machine, by its name for people and by what no other machine has.
struct Lender {
    host: String,
    machine: String,
}

impl Lender {
    /// A host's name and /etc/machine-id are the same on a clone, and a container may have its own; the
    /// kernel's boot is one for all that goes when this machine goes, and no other machine's.
    fn own() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Lender { host, machine: boot.trim().to_owned() }
    }

    /// The machine at that address, where another's NBD server is.
    fn at(address: SocketAddr) -> Self {
        let here = std::net::UdpSocket::bind((address.ip(), 0)).is_ok();
        if here {
            return Self::own();
        }
        let host = address.ip().to_string();
        Lender { machine: host.clone(), host }
    }
}

impl Who {
    /// Who this machine is to the pool.
    pub(crate) fn own(options: &cli_serving::Donate) -> Result<Self, Failure> {
        Who::of(options, Lender::own())
    }

    fn of(options: &cli_serving::Donate, lender: Lender) -> Result<Self, Failure> {
        if options.host_id.as_deref() == Some("") {
            return Err(Failure::usage(
                "--host-id '' names no machine: leave it out, or say what tells this machine from others",
            ));
        }
        let given = |id: &String| !id.is_empty();
        let host_id = options.host_id.clone().or_else(|| std::env::var("CHEETAH_HOST_ID").ok()).filter(given);
        let Lender { host, machine } = lender;
        let (name, or_numbered) = match &options.name {
            Some(name) => (name.clone(), false),
            None => (host.clone(), true),
        };
        check_name(&name).map_err(Failure::usage)?;
        Ok(Who { name, or_numbered, host, machine: host_id.unwrap_or(machine) })
    }
}

/// Registers another's NBD server with the pool and watches it.
async fn donate_foreign(options: cli_serving::Donate) -> Result<(), Failure> {
    if options.no_pool {
        return Err(Failure::usage(
            "--no-pool serves this machine's memory; an NBD server serves itself already",
        ));
    }
    if options.reserve.is_some() || options.max.is_some() {
        return Err(Failure::usage(
            "--reserve and --max are about this machine's memory, not an NBD server's",
        ));
    }
    let uri: Uri = size_of(&options).parse().map_err(|e| Failure::usage(format!("{e}")))?;
    let address = resolve(&uri)?;
    let mut signals = Signals::listen()?;
    // Its pool says how it is spoken to.
    let Some(pool) = find_in_time(&options.pool, &mut signals).await? else { return Ok(()) };
    let transport = pool.transport();
    fits(&uri, transport.tls().is_some())?;
    let probe = || cheetah_rim::volume::probe(Endpoint::Tcp(address), uri.export.clone(), &transport);
    let session = probe().await.map_err(|failure| Failure::failed(failure.into_why()))?;
    let extents = u32::try_from(session.info.size / EXTENT_BYTES).unwrap_or(u32::MAX).min(DONOR_EXTENTS_MAX);
    if extents == 0 {
        let (has, least) = (show_bytes(session.info.size), show_bytes(EXTENT_BYTES));
        return Err(Failure::failed(format!("{address} has {has}, less than the smallest loan, {least}")));
    }
    let who = Who::of(&options, Lender::at(address))?;
    let (control, handle) =
        control(who, address, extents, Some(uri.export.clone()), pool.clone(), DonorHooks::none())?;
    let lends = format!("lends {} of {address}", show_bytes(u64::from(extents) * EXTENT_BYTES));
    tokio::select! {
        ended = run(control, handle, signals, pool.url(), &lends, None, options.no_drain) => ended,
        why = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if let Err(failure) = probe().await {
                    break failure.into_why();
                }
            }
        } => Err(Failure::failed(format!("the NBD server is gone, and what it held with it: {why}"))),
    }
}

/// All of a pool ask a donor in one way, with the certificates that they have of the pool.
fn fits(uri: &Uri, is_tls: bool) -> Result<(), Failure> {
    match &uri.tls {
        Some(tls) if *tls != Tls::default() => Err(Failure::usage(
            "a donor is asked with the pool's own certificates: leave the tls- parameters out, and give its server \
             those of `cheetah token new --role donor --pem DIR`",
        )),
        Some(_) if !is_tls => {
            Err(Failure::usage("this pool speaks in the clear, and so do all donors: name nbd://"))
        }
        _ => Ok(()),
    }
}

fn resolve(uri: &Uri) -> Result<SocketAddr, Failure> {
    match &uri.transport {
        Transport::Tcp { host, port } => {
            let found = (host.as_str(), *port).to_socket_addrs().ok().and_then(|mut all| all.next());
            found.ok_or_else(|| Failure::failed(format!("the host '{host}' has no address")))
        }
        Transport::Unix { .. } => {
            Err(Failure::usage("donors are reached over the network: name nbd://HOST:PORT/EXPORT"))
        }
    }
}
