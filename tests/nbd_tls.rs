//! NBD over TLS with certificates that openssl makes, by the options of the command line.

use onefold_tests::{Scene, client, installed, noise};

/// An authority, and certificates of it for this machine and for a client, named as libnbd wants them in a directory.
fn make_certificates(scene: &Scene) {
    let openssl = |arguments: &str| {
        client("openssl", arguments.split(' ').map(|word| word.replace('@', &scene.text("pki/")))).succeeds();
    };
    std::fs::create_dir(scene.path("pki")).unwrap();
    std::fs::write(scene.path("pki/names"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").unwrap();
    openssl("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout @ca-key.pem -out @ca-cert.pem");
    for name in ["server", "client"] {
        openssl(&format!("req -newkey rsa:2048 -nodes -subj /CN={name} -keyout @{name}-key.pem -out @{name}.csr"));
        openssl(&format!(
            "x509 -req -days 2 -in @{name}.csr -CA @ca-cert.pem -CAkey @ca-key.pem -CAcreateserial -extfile @names -out @{name}-cert.pem"
        ));
    }
    std::fs::create_dir(scene.path("anonymous")).unwrap();
    std::fs::copy(scene.path("pki/ca-cert.pem"), scene.path("anonymous/ca-cert.pem")).unwrap();
}

#[test]
fn clients_copy_over_tls_and_the_daemon_asks_for_what_it_was_told_to() {
    if !installed(&["openssl", "nbdinfo", "nbdcopy"]) {
        return;
    }
    let scene = Scene::new(&[], "");
    make_certificates(&scene);
    scene.volume("disk", "8MiB");
    std::fs::write(scene.path("image"), noise(1, 8 << 20)).unwrap();
    let common = ["--nbd", "127.0.0.1:0", "--tls-certificate", "pki/server-cert.pem", "--tls-key", "pki/server-key.pem"];

    let daemon = scene.serve_with(&[&common[..], &["--tls-client-ca", "pki/ca-cert.pem"]].concat());
    let (image, back, port) = (scene.text("image"), scene.text("back"), daemon.port());
    let uri = |folder: &str| format!("nbds://localhost:{port}/disk?tls-certificates={}", scene.text(folder));
    let with_tls = client("nbdinfo", [&uri("pki")]);
    if with_tls.text().contains("TLS support") {
        println!("skipped: libnbd was built without TLS");
        return;
    }
    let information = with_tls.succeeds().text();
    assert!(information.contains("with TLS"), "{information}");
    client("nbdcopy", ["--flush", &image, &uri("pki")]).succeeds();
    client("nbdcopy", [&uri("pki"), &back]).succeeds();
    assert!(std::fs::read(&image).unwrap() == std::fs::read(&back).unwrap());
    assert_ne!(client("nbdinfo", [&format!("nbd://localhost:{port}/disk")]).code, 0, "plain text");
    assert_ne!(client("nbdinfo", [&uri("anonymous")]).code, 0, "no certificate");
    daemon.stop();

    let daemon = scene.serve_with(&common);
    let port = daemon.port();
    client("nbdinfo", [&format!("nbds://localhost:{port}/disk?tls-certificates={}", scene.text("anonymous"))]).succeeds();
    client("nbdinfo", [&format!("nbd://localhost:{port}/disk")]).succeeds();
    daemon.stop();

    let refused = scene.run(["serve", "--nbd", "127.0.0.1:0", "--tls-certificate", "pki/server-cert.pem"]).ends_with(2).text();
    assert!(refused.contains("key"), "{refused}");
}
