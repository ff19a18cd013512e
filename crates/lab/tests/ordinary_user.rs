//! What a user without any rights can do: attach a volume as a file, by the system's own helper.

use std::process::Command;

use cheetah_lab::pool::{Pool, binary};
use cheetah_lab::scratch::Scratch;
use cheetah_lab::tools;

const NOBODY: &str = "65534";
const BYTES: usize = 5_000_000;

/// In a mount namespace with a `/dev/fuse` that everybody may open, which is how Debian has it. Each line
/// must succeed.
const SCRIPT: &str = r#"
set -eux
mkdir dev mine run config
# From where it is built the user may not be let in.
install "$CHEETAH" cheetah
mount -t tmpfs none dev
mknod -m 666 dev/fuse c 10 229
mount --bind dev/fuse /dev/fuse
chown -R "$NOBODY" mine run config
chmod 700 run
export XDG_RUNTIME_DIR="$PWD/run" XDG_CONFIG_HOME="$PWD/config"
user() { setpriv --reuid "$NOBODY" --regid "$NOBODY" --clear-groups "$@"; }
refused() { if "$@"; then exit 1; fi; }

# A member like others, by a token; the pool is known from then on.
refused user ./cheetah attach case mine
printf %s "$INVITATION" | user ./cheetah join -
refused setpriv --reuid 65533 --regid 65533 --clear-groups ls config/cheetah/identity

user ./cheetah attach case mine 2>said
grep -q user_allow_other said
test "$(user stat -c %u:%a mine/case.raw)" = "$NOBODY:600"
refused ls mine
user dd if=noise of=mine/case.raw bs=1M conv=notrunc,fsync status=none
user cmp -n "$BYTES" noise mine/case.raw
user ./cheetah detach case
test -z "$(user ls mine)"

user ./cheetah attach case mine --read-only
user cmp -n "$BYTES" noise mine/case.raw
refused user dd if=noise of=mine/case.raw bs=1M conv=notrunc
user ./cheetah detach case

# Root may read it where the machine's owner lets users say so, and nobody else.
echo user_allow_other >fuse.conf
mount --bind fuse.conf /etc/fuse.conf
user ./cheetah attach case mine --read-only 2>said
refused grep -q user_allow_other said
cmp -n "$BYTES" noise mine/case.raw
refused setpriv --reuid 65533 --regid 65533 --clear-groups cat mine/case.raw
user ./cheetah detach case
"#;

#[test]
fn attaches_by_the_helper_and_shares_with_root_at_most() {
    let mut pool = Pool::start();
    pool.donate("one", "128M");
    pool.create_linear("case", "64M");
    let scratch = Scratch::new();
    let noise: Vec<u8> = (0..BYTES).map(|at| (at * at / 7) as u8).collect();
    scratch.file("noise", &noise);
    let mut command = Command::new(tools::need("unshare"));
    command.args(["--mount", "sh", "-c", SCRIPT]).current_dir(scratch.path());
    let invitation = pool.ok(["token", "new", "--role", "client"]);
    command.env("CHEETAH", binary()).env("INVITATION", invitation.trim()).env_remove("CHEETAH_POOL");
    command.env("NOBODY", NOBODY).env("BYTES", BYTES.to_string());
    for tool in ["setpriv", "mknod", "fusermount3"] {
        tools::need(tool);
    }
    let output = tools::output(&mut command);
    let (said, steps) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{steps}");
}
