//! Which requests a server carries out, per command, flag and range.

use cheetah_nbd::limits::REQUEST_PAYLOAD_BYTES_MAX;
use cheetah_nbd::{
    CmdFlags, Command, Errno, ExportInfo, Mark, Negotiated, Reject, RequestHeader, TransmissionFlags,
    Violation,
};

const SIZE: u64 = 1 << 30;
const ALL: [Command; 7] = [
    Command::Read,
    Command::Write,
    Command::Flush,
    Command::Trim,
    Command::Cache,
    Command::WriteZeroes,
    Command::BlockStatus,
];

/// A session in which everything is allowed.
fn session() -> Negotiated {
    Negotiated {
        export: "disk".into(),
        info: ExportInfo::new(SIZE, TransmissionFlags(u16::MAX).without(TransmissionFlags::READ_ONLY)),
        structured_replies: true,
        base_allocation: Some(1),
        dirty: None,
        context: None,
        auth: None,
    }
}

fn with_flags(change: impl Fn(TransmissionFlags) -> TransmissionFlags) -> Negotiated {
    let mut session = session();
    session.info.flags = change(session.info.flags);
    session
}

fn request(command: Command, offset: u64, length: u32) -> RequestHeader {
    RequestHeader { flags: CmdFlags::EMPTY, command, cookie: 7, offset, length }
}

fn flagged(command: Command, flags: CmdFlags) -> RequestHeader {
    RequestHeader { flags, ..request(command, 0, 512) }
}

const fn refused(errno: Errno) -> Result<Command, Reject> {
    Err(Reject::Reply(errno))
}

#[test]
fn the_layout_is_the_protocol_s() {
    let header = RequestHeader {
        flags: CmdFlags::FUA,
        command: Command::Write,
        cookie: 0x0102_0304_0506_0708,
        offset: 0x1000,
        length: 0x200,
    };
    let bytes =
        [0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0];
    assert_eq!(header.encode(), bytes);
    assert_eq!(RequestHeader::decode(&bytes), Ok(header));
    assert_eq!(RequestHeader::decode(&[0; 28]), Err(Violation::RequestMagic(0)));
}

#[test]
fn ranges_end_with_the_export() {
    for command in ALL {
        let session = session();
        let beyond = match command {
            Command::Write | Command::WriteZeroes => Errno::NoSpc,
            _ => Errno::Inval,
        };
        assert_eq!(request(command, SIZE - 512, 512).check(&session), Ok(command));
        for (offset, length) in
            [(SIZE - 511, 512), (SIZE, 1), (u64::MAX, 1), (u64::MAX - 511, 512), (SIZE + 1, 0)]
        {
            let expected = if command == Command::Flush { Ok(command) } else { refused(beyond) };
            assert_eq!(request(command, offset, length).check(&session), expected, "{command:?} {offset}");
        }
    }
}

#[test]
fn nothing_is_asked_harmlessly_except_for_a_state() {
    for command in ALL {
        let expected = if command == Command::BlockStatus { refused(Errno::Inval) } else { Ok(command) };
        assert_eq!(request(command, 0, 0).check(&session()), expected);
        assert_eq!(request(command, SIZE, 0).check(&session()), expected);
    }
}

#[test]
fn payloads_are_bounded_and_ranges_without_payload_are_not() {
    let (max, over) = (REQUEST_PAYLOAD_BYTES_MAX, REQUEST_PAYLOAD_BYTES_MAX + 1);
    for command in ALL {
        assert_eq!(request(command, 0, max).check(&session()), Ok(command));
        let expected = match command {
            Command::Read => refused(Errno::Overflow),
            Command::Write => Err(Reject::Close(Violation::PayloadTooBig { command, bytes: over })),
            _ => Ok(command),
        };
        assert_eq!(request(command, 0, over).check(&session()), expected);
    }
    // Even where it would be refused anyway, a payload that cannot be read past closes.
    let read_only = with_flags(|flags| flags | TransmissionFlags::READ_ONLY);
    let check = request(Command::Write, u64::MAX, u32::MAX).check(&read_only);
    assert!(matches!(check, Err(Reject::Close(_))));
}

#[test]
fn a_refused_write_still_has_its_payload() {
    let write = request(Command::Write, SIZE, 512);
    assert_eq!((write.check(&session()), write.payload_bytes()), (refused(Errno::NoSpc), 512));
    for command in ALL.into_iter().filter(|command| *command != Command::Write) {
        assert_eq!(request(command, 0, 512).payload_bytes(), 0);
    }
    assert_eq!(request(Command::Unknown(99), 0, 512).payload_bytes(), 0);
}

#[test]
fn unknown_commands_are_invalid_and_disc_always_passes() {
    for number in [8, 9, u16::MAX] {
        assert_eq!(request(Command::Unknown(number), 0, 0).check(&session()), refused(Errno::Inval));
    }
    let disc = RequestHeader { flags: CmdFlags(0xffff), ..request(Command::Disc, u64::MAX, 1) };
    assert_eq!(disc.check(&session()), Ok(Command::Disc));
}

#[test]
fn a_read_only_export_is_only_read() {
    let session = with_flags(|flags| flags | TransmissionFlags::READ_ONLY);
    for command in ALL {
        let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        let expected = if writes { refused(Errno::Perm) } else { Ok(command) };
        assert_eq!(request(command, 0, 512).check(&session), expected);
    }
}

#[test]
fn what_was_not_offered_is_invalid() {
    let session = with_flags(|_| TransmissionFlags::HAS_FLAGS);
    for command in [Command::Flush, Command::Trim, Command::Cache, Command::WriteZeroes] {
        assert_eq!(request(command, 0, 512).check(&session), refused(Errno::Inval));
    }
    for command in [Command::Read, Command::Write, Command::BlockStatus] {
        assert_eq!(request(command, 0, 512).check(&session), Ok(command));
    }
    let no_context = Negotiated { base_allocation: None, ..session };
    assert_eq!(request(Command::BlockStatus, 0, 512).check(&no_context), refused(Errno::Inval));
    let other_context = Negotiated { dirty: Some(7), ..no_context };
    assert_eq!(request(Command::BlockStatus, 0, 512).check(&other_context), Ok(Command::BlockStatus));
}

#[test]
fn each_flag_has_its_commands() {
    for bit in 0..16 {
        let flags = CmdFlags(1 << bit);
        for command in ALL {
            let valid = match flags {
                CmdFlags::FUA => true,
                CmdFlags::NO_HOLE | CmdFlags::FAST_ZERO => command == Command::WriteZeroes,
                CmdFlags::DF => command == Command::Read,
                CmdFlags::REQ_ONE => command == Command::BlockStatus,
                _ => false,
            };
            let expected = if valid { Ok(command) } else { refused(Errno::Inval) };
            assert_eq!(flagged(command, flags).check(&session()), expected, "{command:?} {flags:?}");
        }
    }
}

#[test]
fn each_flag_needs_its_offer() {
    let plain = Negotiated { structured_replies: false, ..session() };
    assert_eq!(flagged(Command::Read, CmdFlags::DF).check(&plain), refused(Errno::Inval));
    let no_fua = with_flags(|flags| flags.without(TransmissionFlags::SEND_FUA));
    assert_eq!(flagged(Command::Write, CmdFlags::FUA).check(&no_fua), refused(Errno::Inval));
    let no_fast = with_flags(|flags| flags.without(TransmissionFlags::SEND_FAST_ZERO));
    let zeroes = |flags| flagged(Command::WriteZeroes, flags).check(&no_fast);
    assert_eq!(zeroes(CmdFlags::FAST_ZERO), refused(Errno::Inval));
    assert_eq!(zeroes(CmdFlags::NO_HOLE | CmdFlags::FUA), Ok(Command::WriteZeroes));
}

#[test]
fn a_minimum_block_holds_except_at_an_odd_end() {
    let mut session = session();
    session.info.block_min = 512;
    session.info.size = 1000;
    for (offset, length, fits) in
        [(0, 512, true), (512, 488, true), (0, 1000, true), (1, 511, false), (0, 100, false)]
    {
        let expected = if fits { Ok(Command::Read) } else { refused(Errno::Inval) };
        assert_eq!(request(Command::Read, offset, length).check(&session), expected, "{offset} {length}");
    }
}

#[test]
fn a_mark_has_a_request_s_shape_and_is_for_those_who_agreed_upon_it() {
    let mark = Mark { number: 0x0102_0304_0506_0708, targets: 0b1011, complete: 99, keep: false };
    let header = RequestHeader::decode(&mark.header().encode()).unwrap();
    assert_eq!((header.command, Mark::of(&header)), (Command::Mark, mark));
    assert_eq!(header.payload_bytes(), 0);
    assert_eq!(
        header.check(&session()),
        refused(Errno::Inval),
        "to others it is a command that is not known"
    );
    assert_eq!(header.check(&Negotiated { dirty: Some(2), ..session() }), Ok(Command::Mark));
    let keeps = Mark { keep: true, ..mark };
    assert_eq!(Mark::of(&RequestHeader::decode(&keeps.header().encode()).unwrap()), keeps);
}
