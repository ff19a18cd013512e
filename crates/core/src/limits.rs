//! Every limit of the data and control paths, in one place, unit last in the name.
//! Never: a limit that only one file knows. Relations between them are asserted at compile time below.

/// The block: the unit of presence and (later) of checksums.
pub const BLOCK_BYTES: u64 = 4096;
/// The extent: the unit of placement, a run of one donor's memory.
pub const EXTENT_BYTES: u64 = 64 << 20;
/// Blocks of an extent.
pub const EXTENT_BLOCKS: u64 = EXTENT_BYTES / BLOCK_BYTES;
/// What a donor remembers a write by: the region that a new writer resyncs after the last one died.
pub const DIRTY_REGION_BYTES: u64 = 64 << 10;
/// Nonce and authentication tag of a block of an encrypted volume.
pub const AUTH_BYTES: usize = 28;
/// Of this much of a disk its donor puts down that memory may have what the disk has not, before it answers
/// the first write there of a volume with write-back. After a stop as much counts as older.
pub const INTENT_REGION_BYTES: u64 = 1 << 20;
/// Blocks of such a region.
pub const INTENT_REGION_BLOCKS: u64 = INTENT_REGION_BYTES / BLOCK_BYTES;
/// So many such regions of a disk at most: a donor that comes back is given all of them again, and a flush
/// waits for that.
pub const INTENT_REGIONS_MAX: usize = 1024;
/// A block that was written is on the disk after so long, or on its way there.
pub const WRITE_BACK_AFTER_NS: u64 = 5 * SECOND_NS;
/// What a disk did not take of that is tried again after so long.
pub const WRITE_BACK_AGAIN_NS: u64 = SECOND_NS;
/// One part of so many of a donor's cache may be what the disk has not.
pub const WRITE_BACK_SHARE: u64 = 4;
/// Writes of one volume that a donor lists one by one until it hears that they are complete everywhere.
pub const LEDGER_WRITES_MAX: usize = 16_384;
/// What a donor keeps of what writes covered that are not known to be complete; beyond that the oldest go. A
/// writer's share of a volume's requests under way is less.
pub const UNDO_BYTES_MAX: u64 = 32 << 20;
/// What one donor holds of a row of a stripe, unless `--unit` says otherwise. Requests of 256 KiB, as copying
/// tools send them, cost a quarter less processor time when one donor has all of it, and no less when four
/// have it. With parity a row should be short: one that is written in part has to be read first.
pub const UNIT_STRIPE_BYTES: u32 = 256 << 10;
/// The same where there is parity, unless `--unit` says otherwise.
pub const UNIT_PARITY_BYTES: u32 = 64 << 10;
/// The smallest unit. Every unit is a power of two.
pub const UNIT_MIN_BYTES: u32 = 4 << 10;
/// The largest unit.
pub const UNIT_MAX_BYTES: u32 = 1 << 20;
/// What a client keeps of what it reads ahead, unless `--cache` says otherwise.
pub const CACHE_DEFAULT_BYTES: u64 = 64 << 20;
/// How long a volume's data thread looks for what comes next before it sleeps, unless `--poll-us` says
/// otherwise: what a donor that has to wake up takes to answer on a virtual machine, and as much again.
pub const POLL_DEFAULT_US: u16 = 100;
/// The widest group, data and parity together.
pub const STRIPE_DONORS_MAX: u32 = 32;
/// The most parity fragments of a group with more than one data fragment.
pub const PARITY_MAX: u32 = 4;
/// The largest single request of a front end or to a donor (NBD's customary limit).
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// The largest volume: NBD and off_t are signed 64-bit.
pub const VOLUME_BYTES_MAX: u64 = (1 << 63) - 1;
/// The most that one donor may lend of another's NBD server (2^20 extents are 64 TiB).
pub const DONOR_EXTENTS_MAX: u32 = 1 << 20;
/// As much of a machine's own memory (16 TiB): who claims more is not believed.
pub const DONOR_MEMORY_EXTENTS_MAX: u32 = 1 << 18;
/// Extents of a volume that is larger than its memory which may share one: what these cover is less than
/// 4 GiB.
pub const LAYERS_MAX: u32 = 63;
/// Donors that a pool lists at once, lost ones too. One more is refused as `Unavailable`.
pub const POOL_DONORS_MAX: usize = 16_384;
/// Volumes of a pool at once. One more is refused as `Unavailable`.
pub const POOL_VOLUMES_MAX: usize = 4_096;
/// The length of a donor's or volume's name; `units::check_name` says of which characters.
pub const NAME_BYTES_MAX: usize = 64;

/// A request of a front end is answered, with data or with EIO, by this time after it was submitted.
pub const REQUEST_DEADLINE_NS: u64 = 30 * SECOND_NS;
/// A write is not begun later than this before its deadline: donors that are there answer sooner.
pub const WRITE_MARGIN_NS: u64 = 2 * SECOND_NS;
/// Requests a volume holds at once, over all front ends; the next one is refused until one completes.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 1024;
/// Connections to all donors of a volume together, where a round trip is shorter than `FAR_NS`, but at least
/// one to each: what comes over one connection is sent and answered in larger batches.
pub const CONNECTIONS_NEAR: usize = 2;
/// As many where it is longer: each grows its window by itself, and one that lost a packet does not stop the
/// others.
pub const CONNECTIONS_FAR: usize = 8;
/// The round trip that tells a far donor from a near one.
pub const FAR_NS: u64 = 2 * MILLISECOND_NS;
/// Connections with a round trip of this or more run BBR. Full queues of a LAN seldom take as long, and what
/// would be lost there is more than what it brings at 2 ms.
pub const BBR_NS: u64 = 5 * MILLISECOND_NS;
/// A donor that does not accept a connection by this time is set aside.
pub const CONNECT_DEADLINE_NS: u64 = 2 * SECOND_NS;
/// How long a client waits for donors of one kind before it goes round them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// A donor that owes an answer and gives none for this long, while others do, is set aside when
    /// redundancy covers it. Two may be found one after the other, and writes shall not wait for 2 s.
    pub silence_ns: u64,
    /// A silent link is opened anew once before that: a flipped bit may have got the two out of step.
    pub reopen_ns: u64,
    /// A read is repeated from redundancy after its donor's own mean latency and four times its deviation,
    /// but not sooner than this, and not later than the next.
    pub hedge_min_ns: u64,
    /// See `hedge_min_ns`.
    pub hedge_max_ns: u64,
    /// A donor that answers is slow when it takes longer than this and `SLOW_FACTOR` times as long as the
    /// others...
    pub slow_min_ns: u64,
    /// ...and is set aside when it stays so.
    pub slow_ns: u64,
    /// One whose process has ended may start again with what it held. So it is waited for as one that is
    /// silent, and what was on its way is sent again: a row that is written without it is torn when the
    /// others end as well.
    pub returns: bool,
}

impl Patience {
    /// With memory.
    pub const MEMORY: Patience = Patience {
        silence_ns: 800 * MILLISECOND_NS,
        reopen_ns: 300 * MILLISECOND_NS,
        hedge_min_ns: 10 * MILLISECOND_NS,
        hedge_max_ns: 500 * MILLISECOND_NS,
        slow_min_ns: 100 * MILLISECOND_NS,
        slow_ns: SECOND_NS,
        returns: false,
    };
    /// With disks: one that turns takes 12 ms for each request of its queue, and a flush of a worn one takes
    /// seconds. A read that is hedged too soon lengthens the queues of all others, which are late then.
    pub const DISK: Patience = Patience {
        silence_ns: 8 * SECOND_NS,
        reopen_ns: 3 * SECOND_NS,
        hedge_min_ns: 200 * MILLISECOND_NS,
        hedge_max_ns: 4 * SECOND_NS,
        slow_min_ns: SECOND_NS,
        slow_ns: 10 * SECOND_NS,
        returns: true,
    };
}

/// A client looks this often for what is late, while something is on its way.
pub const TICK_NS: u64 = 25 * MILLISECOND_NS;
/// How often a donor that was set aside is tried again.
pub const DONOR_RETRY_NS: u64 = SECOND_NS;
/// One that was there and does not listen to what it is told is tried again after this, then after twice as
/// long each time: a process that is killed closes its connections before its listener, and the memory
/// between them takes its time.
pub const DONOR_RETRY_SOON_NS: u64 = 10 * MILLISECOND_NS;
/// Doublings of that time at most. `DONOR_RETRY_NS` bounds it sooner.
pub const DONOR_RETRY_DOUBLINGS_MAX: u32 = 8;

/// Jobs (the parts of rows that requests are made of) a volume works on at once.
pub const JOBS_MAX: usize = 4096;
/// How long the beginning of a row waits for the next request to bring the rest, at most.
pub const JOIN_WAIT_NS: u64 = 20 * MILLISECOND_NS;
/// As long, once all that a tool may have waited for was answered: its next request is on its way, or there
/// is none.
pub const JOIN_GRACE_NS: u64 = MILLISECOND_NS;
/// Pieces of the client's memory for parity and for what is put together.
pub const SCRATCH_SMALL_BYTES: u32 = 64 << 10;
/// The number of these pieces.
pub const SCRATCH_SMALL_COUNT: u32 = 128;
/// Larger pieces, for jobs whose lanes or parity exceed a small one.
pub const SCRATCH_LARGE_BYTES: u32 = 1 << 20;
/// The number of these pieces.
pub const SCRATCH_LARGE_COUNT: u32 = 32;
/// Chunks of fragments that are rebuilt at once; what is left of the large pieces is for requests.
pub const FILL_CHUNKS_MAX: u32 = 20;
/// As many, when some of them are on their way off a machine whose owner needs the memory now: each is of
/// another fragment, and only a whole fragment frees memory, so few at a time are the sooner complete.
pub const HURRY_CHUNKS_MAX: u32 = 8;
/// What can lose no more is rebuilt before anything else for so long, whatever the tools of the volume do:
/// donors that end often do so together. What takes longer goes on at the tools' pace.
pub const RUSH_NS: u64 = 5 * SECOND_NS;
/// How long the users' latency is averaged before the pace of rebuilding changes.
pub const PACE_WINDOW_NS: u64 = 100 * MILLISECOND_NS;
/// A donor that owes an answer for so long, and for twice as long as its answers may take, is asked over a
/// new connection whether it is there. If so, it is the old one that hangs, and the link is opened anew; then
/// not again for a while.
pub const DOUBT_NS: u64 = SECOND_NS;
/// The time until the same link may be doubted again.
pub const DOUBT_AGAIN_NS: u64 = 10 * SECOND_NS;
/// The factor beside [`Patience::slow_min_ns`].
pub const SLOW_FACTOR: u64 = 8;
/// A donor that was set aside and missed nothing yet is given up for good after this; at once where its host
/// says that it has ended.
pub const EXCLUDE_NS: u64 = 5 * SECOND_NS;
/// An amendment of the map that failed is sent again after this.
pub const AMEND_RETRY_NS: u64 = 300 * MILLISECOND_NS;
/// A client that ends waits this long for its donors to hear that nothing is half written.
pub const FINISH_NS: u64 = 5 * SECOND_NS;
/// How often the donors of a volume that is attached for writing compare what they hold with its checksums.
pub const SCRUB_EVERY_NS: u64 = 3600 * SECOND_NS;
/// How often all its fragments are read and compared with each other: by that alone rows are found that do
/// not fit though each block is right.
pub const COMPARE_EVERY_NS: u64 = 24 * SCRUB_EVERY_NS;
/// The same where a server holds some that cannot check them.
pub const COMPARE_FOREIGN_EVERY_NS: u64 = SCRUB_EVERY_NS;
/// A donor that had wrong blocks so often has bad memory...
pub const BAD_MEMORY_OCCASIONS: u32 = 3;
/// ...where what is found within this counts once.
pub const OCCASION_NS: u64 = 10 * SECOND_NS;
/// How often the donors' maps of what was written lately are aged.
pub const DIRTY_AGE_NS: u64 = SECOND_NS;

/// A reader beside a writer rebuilds only from what it read within this; a writer's donors remember for
/// longer.
pub const READ_TOGETHER_NS: u64 = 250 * MILLISECOND_NS;
/// What was read ahead is used for so long: another may write there.
pub const AHEAD_KEEP_NS: u64 = SECOND_NS;
/// Where a writer was at work it looks again this many times, after that long and then twice as long each
/// time.
pub const READ_TOGETHER_TRIES: u32 = 5;

/// A donor reports to its coordinator at least this often.
pub const HEARTBEAT_NS: u64 = SECOND_NS;
/// How often a coordinator asks whether anything listens where a donor did that hung up and is not heard,
/// `DONOR_RETRY_SOON_NS` later and then each time twice as long: a second and a quarter in all.
pub const REACHES_MAX: u32 = 7;
/// A donor not heard of for this long counts as lost.
pub const DONOR_SILENCE_NS: u64 = 5 * SECOND_NS;
/// A write lease not renewed for this long may be given to another.
pub const LEASE_NS: u64 = 15 * SECOND_NS;
/// An attached client renews its lease this often.
pub const LEASE_RENEW_NS: u64 = 2 * SECOND_NS;
/// What an attachment reported is not gone by any more when it was not heard of for this long: three
/// renewals.
pub const ATTACHMENT_SILENCE_NS: u64 = 3 * LEASE_RENEW_NS;

/// A machine that is stepped so much later than it asked for was not there meanwhile (stopped, suspended,
/// starved): what it did not hear says nothing of anybody.
pub const ASLEEP_NS: u64 = 2 * SECOND_NS;

/// What the loss of each host would leave without a place is worked out when a volume is shown, unless that
/// takes more looks at a donor than this.
pub const REHEARSAL_LOOKS_MAX: u64 = 1 << 24;
/// An attachment that tools cannot use by then is given up: twice what any one request may take.
pub const START_DEADLINE_NS: u64 = 2 * REQUEST_DEADLINE_NS;

/// Fragments of one volume that are being rebuilt or moved at once; the next ones when those are done.
pub const VOLUME_FILLINGS_MAX: usize = 256;
/// New homes for fragments that the coordinator picks in one step; the rest in the next one.
pub const STEP_FILLINGS_MAX: usize = 1024;
/// A donor that a writer set aside gets no fragment to rebuild for this long; twice as long each time it is
/// set aside again, up to `SET_ASIDE_DOUBLINGS_MAX` times.
pub const SET_ASIDE_NS: u64 = 10 * SECOND_NS;
/// Doublings of that time at most: 320 s in the end.
pub const SET_ASIDE_DOUBLINGS_MAX: u32 = 5;
/// What a donor held that is silent for this long is rebuilt also when nobody writes the volume: long enough
/// for one that only lost its coordinator for a moment, or was lost with it, to be heard again.
pub const TEND_SILENCE_NS: u64 = 10 * SECOND_NS;
/// Volumes at rest that one donor tends at once.
pub const DONOR_TENDS_MAX: usize = 2;
/// A donor that could not attach a volume to tend it tries again after this.
pub const TEND_RETRY_NS: u64 = SECOND_NS;
/// Runs of a volume that no redundancy can give back; beyond it, neighbours become one.
pub const BAD_RANGES_MAX: usize = 65_536;
/// Ranges of a volume that its source could not give; beyond that some between them count as such, too.
pub const UNREADABLE_RANGES_MAX: usize = 1_024;
/// Partitions of a disk that the pool lists: as many as a usual GPT has room for. Of more it has the number.
pub const PARTITIONS_TOLD_MAX: usize = 128;

/// A lost donor that holds nothing stays listed this long.
pub const DONOR_LISTED_NS: u64 = 600 * SECOND_NS;
/// A donor that joins has this long to answer at the address that it gave.
pub const GREETING_NS: u64 = 3 * SECOND_NS;
/// Donors of other pools that a coordinator remembers having turned away, and how long it shows one that
/// asked.
pub const STRANGERS_MAX: usize = 256;
/// The time for which one of them is shown after its last attempt.
pub const STRANGER_SHOWN_NS: u64 = 10 * SECOND_NS;
/// A donor that leaves waits this long for the coordinator to hear its goodbye.
pub const GOODBYE_NS: u64 = 2 * SECOND_NS;
/// A donor that its machine's service manager ends has this long to move away what it holds.
pub const DRAIN_NS: u64 = 60 * SECOND_NS;
/// A donor that holds nothing looks this often at what its machine's owner needs,
pub const OWNER_LOOK_NS: u64 = SECOND_NS / 2;
/// one that holds something this often,
pub const OWNER_LOOK_HOLDING_NS: u64 = SECOND_NS / 8;
/// and one that has to give back, while memory becomes less, this often.
pub const OWNER_LOOK_SHORT_NS: u64 = SECOND_NS / 32;
/// How fast memory becomes less is measured over this time at least, and again from one look to the next.
pub const OWNER_FALL_NS: u64 = SECOND_NS / 8;
/// A donor ends when memory lasts no longer than this, and this for each extent in use: a kernel was seen to
/// take 20 ms for a GiB of small pages until it frees the first.
pub const OWNER_LAST_NS: u64 = SECOND_NS / 5;
/// The addition to that for each extent of memory in use.
pub const OWNER_LAST_EXTENT_NS: u64 = 2 * MILLISECOND_NS;
/// So much of what seems available may not be had (and no more than an eighth of the reserve): the kernel's
/// figures are not exact.
pub const OWNER_FLOOR_BYTES_MAX: u64 = 32 << 20;
/// An offer rises again when the owner has needed nothing for this long,
pub const OWNER_CALM_NS: u64 = 30 * SECOND_NS;
/// by this part of the most that is lent, each time after this long.
pub const OWNER_GROW_PERCENT: u32 = 5;
/// The shortest time between two such steps.
pub const OWNER_GROW_NS: u64 = 10 * SECOND_NS;
/// The part of time that tasks may wait for memory before a machine with little of it counts as short.
pub const OWNER_STALL_PERCENT_MAX: u64 = 10;
/// Attachments a pool holds at once, readers and writers of all volumes together.
pub const POOL_LEASES_MAX: usize = 65_536;
/// Free text that callers hand in to be shown to others, as much as is kept of it: who they are,
pub const HOLDER_BYTES_MAX: usize = 128;
/// which machine that is (names of hosts may have 253),
pub const HOST_BYTES_MAX: usize = 255;
/// what is on a partition,
pub const HOLDS_BYTES_MAX: usize = 64;
/// why they cannot reach somebody,
pub const REASON_BYTES_MAX: usize = 256;
/// and where tools find their volume, or what a foreign export is called: as long as paths may be.
pub const PLACE_BYTES_MAX: usize = 4_096;
/// Others of a volume that the holder of a lease is told of.
pub const BESIDE_MAX: usize = 16;
/// Connections a coordinator's listener holds at once, as far as it has descriptors; beyond it idle ones go.
pub const CONTROL_CONNECTIONS_MAX: usize = 20_000;
/// As many of one address, behind which there may be many donors and tools.
pub const CONTROL_PEER_CONNECTIONS_MAX: usize = 4_096;
/// Descriptors that a process keeps for all else than connections: its state, its runtimes, its calls.
pub const DESCRIPTORS_SPARE: u64 = 64;
/// Descriptors that one connection of the data path takes: its socket, and the pipe of what is lent to it.
pub const DATA_CONNECTION_DESCRIPTORS: u64 = 3;
/// Fewer clients than this at once are not worth being a donor for.
pub const DONOR_CONNECTIONS_MIN: u64 = 32;
/// The body of a control request.
pub const CONTROL_REQUEST_BYTES_MAX: usize = 1 << 20;
/// The body of a control answer: the map of the largest volume.
pub const CONTROL_ANSWER_BYTES_MAX: usize = 512 << 20;
/// What a control call may take beyond the time the coordinator holds it back.
pub const CONTROL_DEADLINE_NS: u64 = 5 * SECOND_NS;
/// How long a search for a coordinator by mDNS takes.
pub const DISCOVERY_NS: u64 = 2 * SECOND_NS;
/// Where a coordinator listens, and is looked for, unless told otherwise.
pub const COORDINATOR_PORT: u16 = 10_808;
/// Calls to one of several coordinators that did not answer by then are put to the next.
pub const CONTROL_ATTEMPT_NS: u64 = 2 * SECOND_NS;

/// How long the right to lead a pool lasts, in etcd, when it is not renewed: longer than etcd takes to choose
/// another leader of its own, up to 2 s, after a renewal that was just due.
pub const LEADER_LEASE_NS: u64 = 4 * SECOND_NS;
/// A leading coordinator renews its right this often.
pub const LEADER_RENEW_NS: u64 = SECOND_NS;
/// It stops answering this long before its right ends.
pub const LEADER_MARGIN_NS: u64 = SECOND_NS / 2;
/// A coordinator that stands by looks this often whether somebody leads.
pub const LEADER_LOOK_NS: u64 = SECOND_NS / 4;
/// The next member of etcd is asked, too, when one does not answer by then,
pub const ETCD_NEXT_NS: u64 = 300 * MILLISECOND_NS;
/// and that one is given up after this.
pub const ETCD_ATTEMPT_NS: u64 = SECOND_NS;
/// Operations of one transaction; etcd takes 128, and one is for the record of who commits.
pub const ETCD_TXN_OPS_MAX: usize = 120;
/// Keys and values of one transaction; etcd takes requests of 1.5 MiB.
pub const ETCD_TXN_BYTES_MAX: usize = 1 << 20;
/// A longer record is stored in parts.
pub const ETCD_PART_BYTES_MAX: usize = 512 << 10;
/// Keys that are read at once.
pub const ETCD_PAGE_KEYS_MAX: usize = 64;
/// Where a member of etcd listens unless told otherwise.
pub const ETCD_PORT: u16 = 2_379;

/// Tokens by which somebody may still come into a pool.
pub const POOL_TOKENS_MAX: usize = 1024;
/// Members of a pool.
pub const POOL_MEMBERS_MAX: usize = 16_384;
/// Who a member is, by its own word.
pub const MEMBER_NAME_BYTES_MAX: usize = 128;
/// A token is good for a year at most.
pub const TOKEN_SECONDS_MAX: u64 = 366 * 24 * 3600;
/// How long a certificate lasts. It is renewed when a third of that is over.
pub const CERTIFICATE_SECONDS: u64 = 7 * 24 * 3600;

/// Entries in the log of one volume, before only what matters most is put down.
pub const CUSTODY_ENTRIES_MAX: usize = 2_000;
/// Entries of what matters most beyond that.
pub const CUSTODY_ENTRIES_SPARE: usize = 500;
/// What the logs of all deleted volumes take, before the oldest is dropped.
pub const CUSTODY_DELETED_BYTES_MAX: usize = 64 << 20;

/// A second, in the unit of all times here.
pub const SECOND_NS: u64 = 1_000_000_000;
/// A millisecond, likewise.
pub const MILLISECOND_NS: u64 = 1_000_000;

const _: () = {
    assert!(EXTENT_BYTES.is_power_of_two() && EXTENT_BYTES.is_multiple_of(UNIT_MAX_BYTES as u64));
    assert!(EXTENT_BYTES.is_multiple_of(32 * DIRTY_REGION_BYTES) && DIRTY_REGION_BYTES >= BLOCK_BYTES);
    assert!(UNIT_MIN_BYTES as u64 >= BLOCK_BYTES);
    assert!(LAYERS_MAX as u64 * EXTENT_BYTES < 1 << 32);
    assert!(DONOR_EXTENTS_MAX as u64 * EXTENT_BYTES <= 1 << crate::layout::LAYER_SHIFT);
    assert!(HEARTBEAT_NS * 3 <= DONOR_SILENCE_NS && LEASE_RENEW_NS * 3 <= LEASE_NS);
    assert!(ATTACHMENT_SILENCE_NS < LEASE_NS);
    assert!(DONOR_SILENCE_NS + HEARTBEAT_NS * 2 < TEND_SILENCE_NS);
    // Who is late by less finds that donors and holders of leases have time left.
    assert!(ASLEEP_NS + 2 * HEARTBEAT_NS < DONOR_SILENCE_NS && ASLEEP_NS + 2 * LEASE_RENEW_NS < LEASE_NS);
    assert!(CONNECT_DEADLINE_NS < REQUEST_DEADLINE_NS && CONNECT_DEADLINE_NS < GREETING_NS);
    assert!(CONTROL_ATTEMPT_NS * 2 <= CONTROL_DEADLINE_NS);
    // A renewal may fail once, and donors and leases outlive a change of leader.
    assert!(LEADER_RENEW_NS * 2 + LEADER_MARGIN_NS <= LEADER_LEASE_NS);
    assert!(LEADER_LEASE_NS + LEADER_LOOK_NS < DONOR_SILENCE_NS && LEADER_LEASE_NS * 3 <= LEASE_NS);
    assert!(ETCD_PART_BYTES_MAX * 2 <= ETCD_TXN_BYTES_MAX);
    assert!(REQUEST_BYTES_MAX as u64 <= EXTENT_BYTES);
    assert!(SCRATCH_LARGE_BYTES as u64 / STRIPE_DONORS_MAX as u64 >= BLOCK_BYTES);
    assert!(READ_TOGETHER_NS * 2 <= DIRTY_AGE_NS);
    assert!(FILL_CHUNKS_MAX < SCRATCH_LARGE_COUNT && HURRY_CHUNKS_MAX <= FILL_CHUNKS_MAX);
    assert!(TICK_NS * 4 <= Patience::MEMORY.reopen_ns);
    assert!(Patience::MEMORY.reopen_ns < Patience::MEMORY.silence_ns);
    assert!(Patience::DISK.reopen_ns < Patience::DISK.silence_ns);
    assert!(Patience::DISK.silence_ns * 3 < REQUEST_DEADLINE_NS);
};
