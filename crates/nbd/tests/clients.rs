//! Real clients end to end. A client that is not installed is skipped, and the test says so.

mod common;

use common::{Memory, Serving, loopback, one, start};
use onefold_nbd::{Config, Listen, Tls, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const SIZE: u64 = 32 << 20;

/// Whether a program is there.
fn installed(program: &str) -> bool {
    let found =
        std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).is_file()));
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

/// Runs a program, at most a minute.
fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new("timeout").arg("60").arg(program).args(arguments).output().unwrap()
}

/// What it printed, if it succeeded.
#[track_caller]
fn succeed(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}: {text}", output.status);
    text
}

fn serve() -> (Arc<Memory>, Serving) {
    let disk = Memory::new(SIZE);
    let server = start(loopback(), one(&disk));
    (disk, server)
}

/// An image with data, zeros and a hole; returns its bytes.
fn image(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    for (at, byte) in bytes[..5 << 20].iter_mut().enumerate() {
        *byte = ((at * at) >> 7) as u8;
    }
    bytes[20 << 20..][..70_000].fill(0x5A);
    std::fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn nbdinfo_finds_every_ability() {
    if !installed("nbdinfo") {
        return;
    }
    let (disk, server) = serve();
    let uri = server.uri("disk");
    for ability in ["connect", "cache", "df", "fast-zero", "flush", "fua", "multi-conn", "trim", "write", "zero"] {
        succeed("nbdinfo", &["--can", ability, &uri]);
    }
    assert!(!run("nbdinfo", &["--is", "read-only", &uri]).status.success());
    succeed("nbdinfo", &["--is", "structured-reply", &uri]);
    assert_eq!(succeed("nbdinfo", &["--size", &uri]).trim(), SIZE.to_string());
    let json = succeed("nbdinfo", &["--json", &uri]);
    for expected in ["\"export-name\": \"disk\"", "\"base:allocation\"", "\"block_size_minimum\": 1", "\"block_size_maximum\": 33554432"] {
        assert!(json.contains(expected), "{expected}: {json}");
    }
    disk.read_only.store(true, SeqCst);
    succeed("nbdinfo", &["--is", "read-only", &uri]);
    for ability in ["trim", "write", "zero", "fast-zero"] {
        assert!(!run("nbdinfo", &["--can", ability, &uri]).status.success(), "{ability}");
    }
}

#[test]
fn nbdinfo_lists_exports_and_maps_holes() {
    if !installed("nbdinfo") || !installed("nbdcopy") {
        return;
    }
    let (_disk, server) = serve();
    let list = succeed("nbdinfo", &["--list", &server.uri("")]);
    assert!(list.contains("export=\"disk\"") && list.contains("disk of the test"), "{list}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    image(&path);
    succeed("nbdcopy", &["--destination-is-zero", path.to_str().unwrap(), &server.uri("disk")]);
    let map = succeed("nbdinfo", &["--map", &server.uri("disk")]);
    let rows: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..3], ["0", "5242880", "0"], "{map}");
    assert_eq!(rows[1][..3], ["5242880", "15728640", "3"], "{map}");
}

#[test]
fn nbdcopy_copies_both_ways() {
    if !installed("nbdcopy") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
    let bytes = image(&from);
    let (disk, server) = serve();
    succeed("nbdcopy", &["--flush", from.to_str().unwrap(), &server.uri("disk")]);
    assert!(disk.content() == bytes);
    assert!(disk.flushes.load(SeqCst) > 0);
    succeed("nbdcopy", &[&server.uri("disk"), to.to_str().unwrap()]);
    assert!(std::fs::read(&to).unwrap() == bytes);

    let socket = directory.path().join("socket");
    let (copy, second) = (Memory::new(SIZE), Config::new(Listen::Unix(socket)));
    let second = start(second, one(&copy));
    succeed("nbdcopy", &[&server.uri("disk"), &second.uri("disk")]);
    assert!(copy.content() == bytes);
    assert_eq!(server.metrics.snapshot().errors + second.metrics.snapshot().errors, 0);
}

#[test]
fn qemu_converts_and_compares() {
    if !installed("qemu-img") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let [raw, qcow2] = ["image", "image.qcow2"].map(|name| directory.path().join(name));
    let (raw, qcow2) = (raw.to_str().unwrap(), qcow2.to_str().unwrap());
    let bytes = image(raw.as_ref());
    let (disk, server) = serve();
    let uri = server.uri("disk");
    succeed("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", raw, &uri]);
    assert!(disk.content() == bytes);
    succeed("qemu-img", &["compare", "-f", "raw", "-F", "raw", raw, &uri]);
    succeed("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, qcow2]);
    succeed("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", qcow2, &uri]);
    let map = succeed("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(map.contains("\"zero\": true, \"data\": false"), "{map}");
    assert_eq!(server.metrics.snapshot().errors, 0);
}

#[test]
fn qemu_io_patterns_zeroes_and_discards() {
    if !installed("qemu-io") {
        return;
    }
    let (_disk, server) = serve();
    let commands = [
        "write -P 0xa5 0 1M",
        "write -P 0x3c 777216 65536",
        "read -P 0xa5 0 777216",
        "read -P 0x3c 777216 65536",
        "write -z 128k 64k",
        "read -P 0 128k 64k",
        "write -z -u 256k 64k",
        "read -P 0 256k 64k",
        "write -f -P 7 5M 2M",
        "aio_write -P 9 8M 64k",
        "aio_write -P 8 9M 64k",
        "aio_flush",
        "read -P 9 8M 64k",
        "discard 5M 1M",
        "read -P 7 6M 1M",
        "flush",
        "write -P 1 511 3",
        "read -P 1 511 3",
    ];
    let uri = server.uri("disk");
    let mut arguments = vec!["-f", "raw"];
    arguments.extend(commands.iter().flat_map(|command| ["-c", command]));
    arguments.push(&uri);
    let text = succeed("qemu-io", &arguments);
    assert!(!text.contains("Pattern verification failed") && !text.contains("failed"), "{text}");
    assert_eq!(server.metrics.snapshot().errors, 0);
}

#[test]
fn fio_verifies_random_writes() {
    if !installed("fio") {
        return;
    }
    if !succeed("fio", &["--enghelp"]).lines().any(|line| line.trim() == "nbd") {
        println!("skipped: fio was built without its nbd engine");
        return;
    }
    let (_disk, server) = serve();
    let uri = format!("--uri={}", server.uri("disk"));
    let directory = tempfile::tempdir().unwrap();
    let aux = format!("--aux-path={}", directory.path().display());
    let fixed = ["--name=verify", "--ioengine=nbd", "--rw=randrw", "--bsrange=4k-64k", "--iodepth=16", "--size=32m", "--verify=crc32c"];
    let mut arguments = fixed.to_vec();
    arguments.extend(["--verify_backlog=256", "--verify_fatal=1", "--randseed=7", "--fsync=64", "--verify_state_save=0", &uri, &aux]);
    let text = succeed("fio", &arguments);
    assert!(text.contains("err= 0"), "{text}");
    assert_eq!(server.metrics.snapshot().errors, 0);
}

/// libnbd with its own checks switched off, so that the server has to check.
const STRICT: &str = r#"
import errno, nbd, sys
uri, size = sys.argv[1], int(sys.argv[2])
h = nbd.NBD()
h.add_meta_context("base:allocation")
h.connect_uri(uri)
assert h.get_structured_replies_negotiated()
h.set_strict_mode(0)
def fails(expected, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except nbd.Error as error:
        assert error.errnum == expected, (expected, error)
        return
    raise AssertionError(f"should fail with {expected}")
h.pwrite(b"x" * 8192, 4096)
assert bytes(h.pread(8192, 4096)) == b"x" * 8192
fails(errno.EINVAL, h.pread, 512, size)
fails(errno.ENOSPC, h.pwrite, b"y" * 512, size - 1)
fails(errno.ENOSPC, h.zero, 512, size)
fails(errno.EINVAL, h.trim, 512, size)
fails(errno.EINVAL, h.trim, 512, 0, nbd.CMD_FLAG_DF)
fails(errno.EINVAL, h.pwrite, b"y" * 512, 0, nbd.CMD_FLAG_REQ_ONE)
fails(errno.EINVAL, h.pread, 512, 0, nbd.CMD_FLAG_NO_HOLE)
fails(errno.EINVAL, h.pwrite, b"y" * 512, 0, 1 << 14)
fails(errno.ENOTSUP, h.zero, 512, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
h.zero(4096, 4096, nbd.CMD_FLAG_FAST_ZERO)
assert bytes(h.pread(4096, 4096)) == bytes(4096)
chunks = []
def chunk(data, offset, status, error):
    chunks.append((len(data), offset, status))
    return 0
h.pread_structured(65536, 0, chunk, nbd.CMD_FLAG_DF)
assert chunks == [(65536, 0, nbd.READ_DATA)], chunks
chunks.clear()
h.pread_structured(65536, 1 << 20, chunk)
assert chunks == [(65536, 1 << 20, nbd.READ_HOLE)], chunks
extents = []
def extent(context, offset, entries, error):
    extents.append((context, offset, entries))
    return 0
h.block_status(size, 0, extent)
assert extents == [("base:allocation", 0, [8192, 3, 4096, 0, size - 12288, 3])], extents
h.cache(4096, 0)
h.flush()
cookies = [h.aio_pread(nbd.Buffer(4096), at * 4096) for at in range(100)]
while any(not h.aio_command_completed(cookie) for cookie in cookies[-1:]):
    h.poll(-1)
h.shutdown()

h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri(uri)
names = []
h.opt_list(lambda name, description: names.append((name, description)) and 0 or 0)
assert names == [("disk", "disk of the test")], names
h.set_export_name("none")
fails(errno.ENOENT, h.opt_info)
h.set_export_name("disk")
h.opt_info()
assert h.get_size() == size
h.opt_abort()

h = nbd.NBD()
h.set_request_structured_replies(False)
h.connect_uri(uri)
assert not h.get_structured_replies_negotiated()
assert bytes(h.pread(4096, 8192)) == b"x" * 4096
h.shutdown()
"#;

#[test]
fn libnbd_without_its_own_checks_meets_the_servers() {
    let python = "/usr/bin/python3";
    if !Command::new(python).args(["-c", "import nbd"]).output().is_ok_and(|output| output.status.success()) {
        println!("skipped: {python} cannot import nbd");
        return;
    }
    let (_disk, server) = serve();
    succeed(python, &["-c", STRICT, &server.uri("disk"), &SIZE.to_string()]);
}

/// An authority, and a certificate of it for this machine and for a client, as libnbd wants them in a directory.
fn certificates(directory: &Path) -> TlsFiles {
    let issuer = |name: &str| {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let write = |name: &str, text: String| {
        let path = directory.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    };
    let (authority, stranger) = (issuer("onefold test"), issuer("stranger"));
    let sign = |name: &str, issuer: &CertifiedIssuer<'_, KeyPair>| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
    };
    for (folder, issuer) in [("client", Some(&authority)), ("stranger", Some(&stranger)), ("anonymous", None)] {
        write(&format!("{folder}/ca-cert.pem"), authority.pem());
        if let Some(issuer) = issuer {
            let (certificate, key) = sign("client", issuer);
            write(&format!("{folder}/client-cert.pem"), certificate);
            write(&format!("{folder}/client-key.pem"), key);
        }
    }
    let (certificate, key) = sign("localhost", &authority);
    TlsFiles {
        certificate: write("server-cert.pem", certificate),
        key: write("server-key.pem", key),
        client_authorities: Some(write("authorities.pem", authority.pem())),
    }
}

#[test]
fn tls_is_offered_or_required_and_may_want_certificates_of_clients() {
    if !installed("nbdinfo") || !installed("nbdcopy") {
        return;
    }
    if !succeed("nbdcopy", &["--help"]).contains("nbd") || !tls_in_libnbd() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mutual = certificates(directory.path());
    let anonymous = TlsFiles { client_authorities: None, ..mutual.clone() };
    let image_path = directory.path().join("image");
    let bytes = image(&image_path);
    let size = |scheme: &str, port: u16, folder: &str| {
        let folder = directory.path().join(folder);
        let uri = format!("{scheme}://localhost:{port}/disk?tls-certificates={}", folder.display());
        run("nbdinfo", &["--size", &uri]).status.success()
    };
    // (TLS, plain text works, a client without a certificate works, and one of a stranger)
    let cases = [
        (Tls::Required(mutual.clone()), false, false, false),
        (Tls::Required(anonymous.clone()), false, true, true),
        (Tls::Optional(anonymous), true, true, true),
        (Tls::Off, true, false, false),
    ];
    for (tls, plain, without, stranger) in cases {
        let disk = Memory::new(SIZE);
        let off = matches!(tls, Tls::Off);
        let server = start(Config { tls, ..loopback() }, one(&disk));
        let port = server.port();
        assert_eq!(size("nbd", port, "client"), plain, "plain text");
        assert_eq!(size("nbds", port, "client"), !off, "TLS");
        assert_eq!(size("nbds", port, "anonymous"), without, "without a certificate");
        assert_eq!(size("nbds", port, "stranger"), stranger, "with a certificate of a stranger");
        if !off {
            let folder = directory.path().join("client");
            let uri = format!("nbds://localhost:{port}/disk?tls-certificates={}", folder.display());
            succeed("nbdcopy", &[image_path.to_str().unwrap(), &uri]);
            assert!(disk.content() == bytes);
        }
    }
}

fn tls_in_libnbd() -> bool {
    let found = Command::new("/usr/bin/python3").args(["-c", "import nbd, sys; sys.exit(not nbd.NBD().supports_tls())"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: libnbd has no TLS, or its python module is not there to say so");
    }
    found
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let good = certificates(directory.path());
    let bind = |files: TlsFiles| {
        let config = Config { tls: Tls::Required(files), ..loopback() };
        onefold_nbd::Server::bind(config, one(&Memory::new(SIZE))).map(drop)
    };
    assert!(bind(good.clone()).is_ok());
    let missing = directory.path().join("missing.pem");
    let error = bind(TlsFiles { certificate: missing, ..good.clone() }).unwrap_err().to_string();
    assert!(error.contains("missing.pem"), "{error}");
    let error = bind(TlsFiles { certificate: good.key.clone(), ..good.clone() }).unwrap_err().to_string();
    assert!(error.contains("no certificate"), "{error}");
    let error = bind(TlsFiles { key: directory.path().join("client/client-key.pem"), ..good }).unwrap_err().to_string();
    assert!(error.contains("TLS"), "{error}");
}
