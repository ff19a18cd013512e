//! `cheetah up`: a pool on one machine, in one command, until Ctrl-C.
//!
//! Owns: which members there are (`crew` starts them), who they are to each other, the volume `scratch`
//! attached in this process, and their end in reverse. Never: anything that outlives it.

use crate::cli::{self, Front};
use crate::crew::Member;
use crate::daemon::{Attachment, Order};
use crate::failure::Failure;
use crate::front_end::FrontEnd;
use crate::members;
use crate::output;
use crate::pool::volume;
use crate::runtime_dir::RuntimeDir;
use crate::signals::Signals;
use crate::starting::Stops;
use cheetah_core::api::{Call, Create, Size};
use cheetah_core::limits::{CACHE_DEFAULT_BYTES, EXTENT_BYTES, POLL_DEFAULT_US};
use cheetah_core::map::Redundancy;
use cheetah_rim::members::IDENTITY_VARIABLE;
use cheetah_rim::volume::Rule;
use std::path::PathBuf;

const VOLUME: &str = "scratch";
/// Beyond the volume's share, for `create` beside it. Memory that nobody writes to costs nothing.
const SPARE_EXTENTS: u64 = 8;

/// Who this command and its donors are to their pool. Gone with it.
struct Identities(PathBuf);

impl Identities {
    fn make() -> Result<Identities, Failure> {
        RuntimeDir::open()?.make_identities().map(Identities)
    }

    /// Of who typed it, the pool's admin.
    fn own(&self) -> PathBuf {
        self.0.join("admin")
    }

    fn of_donors(&self) -> PathBuf {
        self.0.join("donor")
    }
}

impl Drop for Identities {
    fn drop(&mut self) {
        // They open nothing any more.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub async fn up(options: cli::Up) -> Result<(), Failure> {
    if options.size == 0 {
        return Err(Failure::usage("a volume of size 0 holds nothing: name a --size, like 4G"));
    }
    // Members end with this process's future, so a signal during the start leaves none behind.
    crate::daemon::abort_on_panic();
    let identities = Identities::make()?;
    members::begin_in(identities.own());
    let (mut members, mut signals) = (Vec::new(), Signals::listen()?);
    let started = tokio::select! {
        started = start_all(&options, &identities, &mut members) => Some(started?),
        _ = signals.next() => None,
    };
    let ended = match started {
        Some(attachment) => attachment.serve_until(watch(&mut members, &mut signals)).await,
        None => Ok(()),
    };
    members.iter().for_each(Member::silence);
    output::note(&format!("the pool ends, and with it volume {VOLUME} and all that it held"));
    for member in members.iter_mut().rev() {
        member.end().await;
    }
    ended
}

/// Starts every member and the attachment, and says that it is ready.
async fn start_all(
    options: &cli::Up,
    identities: &Identities,
    members: &mut Vec<Member>,
) -> Result<Attachment, Failure> {
    let coordinate = ["coordinate", "--state", "memory", "--listen", &options.listen];
    let (coordinator, url) = Member::start("the coordinator", &coordinate, &identities.own(), false).await?;
    members.push(coordinator);
    let pool = members::client(&url).await?;
    members::let_donor_in(&pool, &identities.of_donors()).await?;
    let default = match options.donors {
        1 => Redundancy::LINEAR,
        donors => Redundancy { data: donors.min(cheetah_core::limits::STRIPE_DONORS_MAX), parity: 0 },
    };
    let redundancy = options.redundancy.unwrap_or(default);
    let rows = options.size.div_ceil(u64::from(redundancy.data)).div_ceil(EXTENT_BYTES);
    let share = (rows * u64::from(redundancy.width())).div_ceil(u64::from(options.donors));
    let lent = ((share + SPARE_EXTENTS) * EXTENT_BYTES).to_string();
    for donor in 1..=options.donors {
        let name = format!("donor-{donor}");
        let (member, _) = Member::start(
            &name,
            &["donate", &lent, "--pool", &url, "--name", &name, "--host-id", &name, "--no-drain"],
            &identities.of_donors(),
            false,
        )
        .await?;
        members.push(member);
    }
    let create = Create { redundancy: Some(redundancy), ..Create::new(VOLUME, Size::Bytes(options.size)) };
    volume(&pool, Call::Create(create)).await?;
    let attachment = attach(options, &url).await?;
    let ready = attachment.ready.clone();
    for note in &ready.notes {
        output::note(note);
    }
    if options.json.json {
        output::json(&serde_json::json!({
            "path": ready.path, "uri": ready.uri, "pool": url, "identity": identities.own(), "size": ready.size
        }))?;
    } else {
        let path = ready.path.map(|path| path.display().to_string()).unwrap_or_default();
        output::line(&format!("ready: {path} {}", ready.uri.unwrap_or_default()));
        output::note("each donor stands for a host; all of them go with this machine");
        output::note(&format!(
            "pool {url}; `export {}={}` lets a shell in, for `cheetah status` and all else; Ctrl-C ends it",
            IDENTITY_VARIABLE,
            identities.own().display()
        ));
    }
    Ok(attachment)
}

async fn attach(options: &cli::Up, url: &str) -> Result<Attachment, Failure> {
    let (mountpoint, mountpoint_made) = match &options.mount {
        Some(given) => {
            let point = std::path::absolute(given).map_err(|e| Failure::usage(e.to_string()))?;
            crate::attach::make_directory(&point)?;
            (point, false)
        }
        None => (RuntimeDir::open()?.make_mountpoint(VOLUME)?, true),
    };
    let export = match &options.export {
        Some(given) => given.clone(),
        None => RuntimeDir::open()?.export(VOLUME)?,
    };
    let order = Order {
        pool: url.to_owned(),
        name: VOLUME.to_owned(),
        front: Front::Fuse,
        mountpoint: Some(mountpoint),
        mountpoint_made,
        listen: export.clone(),
        sector: None,
        read_only: false,
        writable: false,
        incomplete: false,
        connections: None,
        poll_us: POLL_DEFAULT_US,
        cache: CACHE_DEFAULT_BYTES,
        read_ahead: Rule::default(),
        owner: crate::attach::owner(),
    };
    let stops = Stops { waiter: None, signals: None };
    let mut attachment = Attachment::start(&order, stops).await?;
    let added = match FrontEnd::export(&export) {
        Ok(front) => attachment.add(front).await,
        Err(failure) => Err(failure),
    };
    match added {
        Ok(()) => Ok(attachment),
        Err(failure) => {
            attachment.abandon().await;
            Err(failure)
        }
    }
}

/// Resolves when it is time to end: a signal. A member that ends early is told of; the rest goes on.
async fn watch(members: &mut [Member], signals: &mut Signals) {
    let mut gone = vec![false; members.len()];
    loop {
        for (member, gone) in members.iter_mut().zip(&mut gone) {
            if let (Some(status), false) = (member.has_ended(), *gone) {
                *gone = true;
                output::note(&format!(
                    "{} ended ({status}): what it held is gone, and rebuilt where redundancy covers it",
                    member.what
                ));
            }
        }
        tokio::select! {
            _ = signals.next() => return,
            () = tokio::time::sleep(std::time::Duration::from_millis(500)) => {}
        }
    }
}
