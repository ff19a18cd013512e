//! What a donor reads of its machine, on files like the kernel's.
#![allow(clippy::unwrap_used)]

use cheetah_core::donor::owner::Pressure;
use cheetah_rim::owner::{Machine, Memory};
use std::path::PathBuf;

/// A directory with `proc` and `sys` of its own.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Files {
        let root = std::env::temp_dir().join(format!("cheetah-owner-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let files = Files(root);
        files.write(
            "proc/meminfo",
            "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n",
        );
        files
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn memory(&self) -> (u64, u64) {
        let Memory { total_bytes, available_bytes } = Machine::under(&self.0).memory().unwrap();
        (total_bytes >> 20, available_bytes >> 20)
    }

    fn pressure(&self) -> Option<Pressure> {
        Machine::under(&self.0).pressure()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const PRESSURE: &str =
    "some avg10=12.34 avg60=1.00 avg300=0.00 total=5\nfull avg10=0.07 avg60=0.00 avg300=0.00 total=4\n";

#[test]
fn without_limits_it_is_what_the_machine_has() {
    let files = Files::new("machine");
    assert_eq!((files.memory(), files.pressure()), ((16384, 8192), None));
    files.write("proc/pressure/memory", PRESSURE);
    let pressure = Pressure { some_avg10: 1234, full_avg10: 7, stall_ns_total: 5000 };
    assert_eq!(files.pressure(), Some(pressure));
    files.write("proc/self/cgroup", "4:memory:/a/b\n2:cpu,cpuacct:/\n0::/\n");
    files.write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    files.write("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "9\n");
    assert_eq!(files.memory(), (16384, 8192));
}

#[test]
fn the_tightest_limit_above_it_counts_and_file_pages_do_not() {
    let files = Files::new("v2");
    files.write("proc/self/cgroup", "0::/user/donor\n");
    let group = |name: &str, limit: &str, usage_mib: u64| {
        files.write(&format!("sys/fs/cgroup/{name}/memory.max"), limit);
        files.write(&format!("sys/fs/cgroup/{name}/memory.current"), &format!("{}\n", usage_mib << 20));
    };
    group("user/donor", "max\n", 100);
    group("user", &format!("{}\n", 2048_u64 << 20), 1500);
    assert_eq!(files.memory(), (2048, 548));
    let stat = format!("anon 5\ninactive_file {}\nactive_file {}\n", 500 << 20, 100 << 20);
    files.write("sys/fs/cgroup/user/memory.stat", &stat);
    assert_eq!(files.memory(), (2048, 1148));
    files.write("proc/pressure/memory", PRESSURE);
    files.write("sys/fs/cgroup/user/donor/memory.pressure", PRESSURE);
    let waits = |total| Some(Pressure { some_avg10: 0, full_avg10: 0, stall_ns_total: total });
    files.write("sys/fs/cgroup/user/memory.pressure", "some avg10=0.00 total=1\nfull avg10=0.00 total=1\n");
    assert_eq!(files.pressure(), waits(1000), "of the cgroup that has the limit");
}

#[test]
fn version_1_and_a_path_from_outside_of_a_container() {
    let files = Files::new("v1");
    files.write("proc/self/cgroup", "4:cpu,memory:/docker/0123\n");
    files.write("sys/fs/cgroup/memory/memory.limit_in_bytes", &(1_u64 << 30).to_string());
    files.write("sys/fs/cgroup/memory/memory.usage_in_bytes", &(1_u64 << 29).to_string());
    let stat = "inactive_file 7\ntotal_inactive_file 1048576\ntotal_active_file 2097152\n";
    files.write("sys/fs/cgroup/memory/memory.stat", stat);
    assert_eq!(files.memory(), (1024, 515));
}

#[test]
fn a_machine_that_does_not_tell_is_said_so() {
    let files = Files::new("silent");
    files.write("proc/meminfo", "MemTotal: 5 kB\n");
    assert!(Machine::under(&files.0).memory().unwrap_err().to_string().contains("MemAvailable"));
    files.write("proc/pressure/memory", "nonsense\n");
    assert_eq!(files.pressure(), None);
    assert!(Machine::own().memory().unwrap().available_bytes > 0);
}
