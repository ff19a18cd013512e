//! What other users of this machine can reach: neither an export nor what is remembered of attachments,
//! unless asked for.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use cheetah_lab::pool::{Pool, binary};
use cheetah_lab::scratch::Scratch;
use cheetah_lab::tools;
use serde_json::Value;

const NOBODY: u32 = 65534;

/// In the clear: another user of the machine has no certificate to be let in by, and is to come as far as
/// can be.
fn pool() -> Pool {
    let mut pool = Pool::in_the_clear();
    pool.donate("one", "128M");
    pool.create_linear("case", "64M");
    pool
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").mode() & 0o777
}

#[test]
fn an_export_is_this_users_alone_unless_asked_for() {
    let pool = pool();
    let answer = pool.json(["attach", "case", "--front", "export"]);
    let uri = answer["uri"].as_str().expect("a URI").to_owned();
    let socket = uri.strip_prefix("nbd+unix:///case?socket=").unwrap_or_else(|| panic!("{uri}")).to_owned();
    assert!(!answer["notes"].to_string().contains("user of this machine"), "{answer}");
    assert_eq!((mode(Path::new(&socket)), mode(&pool.scratch().join("run/cheetah"))), (0o600, 0o700));
    assert_eq!(tools::run("nbdinfo", ["--size", &uri]).trim(), (64 << 20).to_string());
    for kind in ["json", "log", "control"] {
        assert_eq!(mode(&pool.scratch().join(format!("run/cheetah/case.{kind}"))), 0o600, "case.{kind}");
    }
    pool.ok(["detach", "case"]);
    assert!(!Path::new(&socket).exists());

    let answer = pool.json(["attach", "case", "--front", "export", "--listen", "127.0.0.1:0"]);
    assert!(answer["uri"].as_str().is_some_and(|uri| uri.starts_with("nbd://127.0.0.1:")), "{answer}");
    assert!(answer["notes"].to_string().contains("every user of this machine"), "{answer}");
    pool.ok(["detach", "case"]);
}

#[test]
fn a_socket_is_where_its_user_says() {
    let pool = pool();
    let here = pool.scratch().directory("here");
    let attach = |listen: &str| {
        let mut command = pool.command();
        command.args(["attach", "case", "--front", "export", "--listen", listen]).current_dir(&here);
        let output = tools::output(&mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned() + &said)
    };
    for (listen, file) in [("unix:rel.sock", "rel.sock"), ("unix:./@x", "@x")] {
        let (code, said) = attach(listen);
        assert_eq!(code, Some(0), "{said}");
        let socket = here.join(file);
        assert!(
            said.contains(&socket.display().to_string().replace('@', "%40"))
                || said.contains(&socket.display().to_string()),
            "{said}"
        );
        assert!(socket.exists() && !Path::new("/").join(file).exists());
        pool.ok(["detach", "case"]);
        assert!(!socket.exists());
    }
    for (listen, words) in
        [("unix:", ["unix:PATH", "names no socket"]), ("unix:@x", ["abstract", "unix:./@x"])]
    {
        let (code, said) = attach(listen);
        assert_eq!(code, Some(2), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        let donor = pool.run(["donate", "64M", "--no-pool", "--listen", listen]);
        assert_eq!(donor.status.code(), Some(2), "{}", donor.err);
        assert!(words.iter().all(|word| donor.err.contains(word)), "{}", donor.err);
    }
    assert_eq!(fs::read_dir(&here).expect("it").count(), 0);
}

/// Who looks what a socket is, takes it for the export, or is of another version, ends nothing.
#[test]
fn an_attachment_ends_for_who_says_so_only() {
    let pool = pool();
    pool.ok(["attach", "case", "--front", "export"]);
    let control = pool.scratch().join("run/cheetah/case.control");
    let uri = format!("nbd+unix:///case?socket={}", control.display());
    tools::expect_failure(tools::command("nbdinfo").arg(&uri));
    for said in [&b""[..], b"\n", b"detach\n", b"cheetah-control 2 detach\n", &[0; 4096]] {
        let mut stream = UnixStream::connect(&control).expect("it listens");
        let _ = stream.write_all(said).and_then(|()| stream.shutdown(Shutdown::Write));
        let mut answer = Vec::new();
        // One that has said more than it may is reset.
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(
            String::from_utf8_lossy(&answer).contains("another version"),
            said.starts_with(b"cheetah-control")
        );
    }
    // Nor do those who say nothing keep others from being heard.
    let silent: Vec<UnixStream> =
        (0..40).map(|_| UnixStream::connect(&control).expect("it listens")).collect();
    assert_eq!(pool.volume_status("case")["attachments"].as_array().map(Vec::len), Some(1));
    pool.ok(["detach", "case"]);
    drop(silent);
    assert!(!control.exists());
}

/// The program as an ordinary user without XDG_RUNTIME_DIR, whose temporary directory anybody may write to.
struct User {
    scratch: Scratch,
}

impl User {
    fn new() -> User {
        tools::need_root("being another user");
        let scratch = Scratch::new();
        fs::copy(binary(), scratch.join("cheetah")).expect("a copy that others may run");
        for (name, mode) in [(".", 0o755), ("cheetah", 0o755)] {
            fs::set_permissions(scratch.join(name), fs::Permissions::from_mode(mode)).expect("a mode");
        }
        let tmp = scratch.directory("tmp");
        fs::set_permissions(tmp, fs::Permissions::from_mode(0o1777)).expect("a mode");
        User { scratch }
    }

    fn run(&self, pool: &Pool, arguments: &[&str]) -> (Option<i32>, String) {
        let (id, tmp) = (NOBODY.to_string(), self.scratch.join("tmp"));
        let mut command = Command::new(tools::need("setpriv"));
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(self.scratch.join("cheetah"));
        command.args(arguments).env("CHEETAH_POOL", pool.url()).env("TMPDIR", tmp);
        command.env_remove("XDG_RUNTIME_DIR");
        let output = tools::output(&mut command);
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code(), said)
    }
}

#[test]
fn what_another_user_prepared_in_its_place_is_not_used() {
    let (pool, user) = (pool(), User::new());
    let (place, target) =
        (user.scratch.join(format!("tmp/cheetah-{NOBODY}")), user.scratch.directory("target"));
    // As another user of the machine prepared it: here that is root.
    symlink(&target, &place).expect("a link");
    let attach = ["attach", "case", "--front", "export"];
    let (code, said) = user.run(&pool, &attach);
    assert!(code == Some(1) && said.contains("is a link") && said.contains("XDG_RUNTIME_DIR"), "{said}");
    assert_eq!(
        (mode(&target), fs::read_dir(&target).expect("it").count()),
        (0o755, 0),
        "the link was followed"
    );
    fs::remove_file(&place).expect("the link");
    fs::create_dir(&place).expect("a directory");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).expect("a mode");
    let (code, said) = user.run(&pool, &attach);
    assert!(code == Some(1) && said.contains("belongs to the user with the number 0"), "{said}");
    assert_eq!(fs::read_dir(&place).expect("it").count(), 0, "files were written for another to read");
    fs::remove_dir(&place).expect("the directory");
    let (code, said) = user.run(&pool, &attach);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(mode(&place), 0o700);
    let (code, said) = user.run(&pool, &["detach", "case"]);
    assert_eq!(code, Some(0), "{said}");
}

/// Too few files to connect to donors: that is said, and no donor is blamed for it.
#[test]
fn a_limit_of_this_process_is_no_loss_of_donors() {
    let pool = pool();
    let image = pool.scratch().sparse_file("image", 1 << 20).display().to_string();
    for arguments in [&["attach", "case", "--front", "export"][..], &["load", &image, "new"]] {
        let program = pool.command();
        let mut command = tools::command("prlimit");
        command.arg("--nofile=40:40").arg(program.get_program()).args(arguments);
        command.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let output = tools::output(&mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("ulimit -n") && !said.contains("delete"), "{said}");
        let status = pool.volume_status("case");
        assert_eq!((&status["health"], &status["attachments"]), (&"whole".into(), &Value::Array(Vec::new())));
    }
}
