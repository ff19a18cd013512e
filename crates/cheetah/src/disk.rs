//! `cheetah donate --disk`: lend files, block devices and exports of other servers to a pool.
//!
//! Owns which disks are lent, and what each says of itself. Never: what is on them (`rim::disk`), or how
//! memory is lent (`donate`). A signal ends such a donor and moves nothing: what it holds stays on its disk,
//! and it goes on with that when it is started again. `cheetah leave` moves it to others first.

use crate::cli_serving;
use crate::donate::{Who, bound, donate_memory, find_in_time};
use crate::failure::Failure;
use crate::mover::tend_what_lies_idle;
use crate::output;
use crate::pool::parse_listen;
use crate::signals::Signals;
use cheetah_core::api::RefusalCode;
use cheetah_core::donor::Exit;
use cheetah_core::limits::{EXTENT_BYTES, NAME_BYTES_MAX};
use cheetah_core::map::Medium;
use cheetah_core::units::show_bytes;
use cheetah_rim::control::{DonorControl, DonorHandle, DonorHooks, DonorOptions};
use cheetah_rim::disk::{Disk, DiskAt};
use cheetah_rim::donor::{DonorServer, Gate};
use cheetah_rim::owner::Machine;
use std::sync::Arc;
use tokio::task::JoinSet;

/// A machine keeps this part of its memory at hand for each disk, where nobody says how much.
const CACHE_SHARE: u64 = 16;
const CACHE_BYTES_MIN: u64 = 64 << 20;

/// Lends memory too, where that was asked for. Ends when one of them does, and says why.
pub async fn donate(options: cli_serving::Donate) -> Result<(), Failure> {
    let lenders = options.disk.len() + usize::from(options.size.is_some());
    if lenders > 1 && options.listen.is_some() {
        return Err(Failure::usage("--listen is one address, and each of several lenders has its own"));
    }
    cheetah_rim::memory::forbid_dumps();
    // All of them are looked at before one is lent.
    let disks = options.disk.iter().map(|at| open(at, &options)).collect::<Result<Vec<_>, Failure>>()?;
    let mut donors = JoinSet::new();
    for (at, disk) in options.disk.clone().into_iter().zip(disks) {
        donors.spawn(lend(options.clone(), at, disk));
    }
    if options.size.is_some() {
        donors.spawn(donate_memory(options));
    }
    while let Some(ended) = donors.join_next().await {
        ended.map_err(|e| Failure::failed(format!("a donor's task failed: {e}")))??;
    }
    Ok(())
}

fn open(at: &DiskAt, options: &cli_serving::Donate) -> Result<Arc<Disk>, Failure> {
    let cache = match options.cache {
        Some(bytes) => bytes,
        None => Machine::own().memory().map_err(Failure::failed)?.total_bytes / CACHE_SHARE,
    };
    let disk = Disk::open(at, cache.max(CACHE_BYTES_MIN));
    let disk = disk.map_err(|why| Failure::failed(format!("{at} cannot be lent: {why}")))?;
    Ok(Arc::new(disk))
}

async fn lend(options: cli_serving::Donate, at: DiskAt, disk: Arc<Disk>) -> Result<(), Failure> {
    let given = options.listen.as_deref().map(parse_listen).transpose()?;
    let mut signals = Signals::listen()?;
    let who = called(Who::own(&options)?);
    let Some(pool) = find_in_time(&options.pool, &mut signals).await? else { return Ok(()) };
    let (bound, address) = bound(given, &pool).await?;
    let Who { name, or_numbered, host, machine } = who;
    let (extents, medium) = (disk.extents(), Medium::Disk);
    let options = DonorOptions {
        name,
        or_numbered,
        host,
        machine,
        listen: address,
        extents,
        foreign_export: None,
        medium,
        keeps_auths: disk.keeps_auths(),
    };
    let (control, handle) =
        DonorControl::returned(disk.donor(), options, pool.clone(), hooks(&disk)).map_err(Failure::failed)?;
    let gate = Gate::Pooled(handle.clone());
    DonorServer::start(bound, &disk, &gate, &pool.transport()).map_err(Failure::failed)?;
    let tending = tokio::spawn(tend_what_lies_idle(pool.clone(), handle.clone()));
    let lends = format!("lends {} of {at} at {address}", show_bytes(u64::from(extents) * EXTENT_BYTES));
    let ended = tokio::select! {
        ended = run(control, handle, &lends, pool.url()) => ended.and_then(|exit| farewell(&disk, exit)),
        () = disk.died() => Err(Failure::failed(format!(
            "{at} does not take what is written to it any more: this donor ends. For the pool it is a donor that died: \
             `cheetah status` shows what is rebuilt elsewhere"
        ))),
        _ = signals.next() => {
            disk.write_back().await;
            output::line(&format!("stopped; what it holds stays on {at}"));
            Ok(())
        }
    };
    tending.abort();
    ended
}

/// Where nobody said what it is called, memory of the same machine has its name.
fn called(who: Who) -> Who {
    if !who.or_numbered {
        return who;
    }
    let room = NAME_BYTES_MAX.saturating_sub("-disk".len()).min(who.name.len());
    Who { name: format!("{}-disk", &who.name[..room]), ..who }
}

fn hooks(disk: &Arc<Disk>) -> DonorHooks {
    let (wiped, counted, kept) = (Arc::clone(disk), Arc::clone(disk), Arc::clone(disk));
    DonorHooks {
        wipe: Arc::new(move |extents| wiped.wipe(extents)),
        bytes_used: Arc::new(move || counted.arena().bytes_used()),
        keep: Some(Arc::new(move |held| kept.keep(held))),
    }
}

/// Keeps the donor in its pool until it is dismissed or refused.
async fn run(
    control: DonorControl,
    mut handle: DonorHandle,
    lends: &str,
    pool: &str,
) -> Result<Exit, Failure> {
    let mut running = tokio::spawn(control.run());
    let exit = tokio::select! {
        exit = &mut running => exit,
        joined = handle.joined() => {
            if joined.is_some() {
                let called = handle.called().borrow().clone();
                output::ready(&format!("donor {called} {lends} to pool {pool}"));
            }
            running.await
        }
    };
    exit.map_err(|e| Failure::failed(format!("the donor's control loop failed: {e}")))
}

/// A disk that the pool let go is blank to it: lent again, it is a new donor.
fn farewell(disk: &Disk, exit: Exit) -> Result<(), Failure> {
    let is_let_go = match &exit {
        Exit::Dismissed => true,
        Exit::Refused(refusal) => refusal.code == RefusalCode::Gone,
        Exit::Terminated => false,
    };
    if is_let_go {
        disk.renew().map_err(|error| Failure::failed(format!("this disk cannot be made anew: {error}")))?;
    }
    match exit {
        Exit::Terminated => Ok(()),
        Exit::Dismissed => {
            output::line("the pool let this donor go; its disk is wiped");
            Ok(())
        }
        Exit::Refused(refusal) => Err(refusal.into()),
    }
}
