//! Git and `grasp push` over TLS, with an authority that only `GIT_SSL_CAINFO` names.

use std::time::Instant;

use super::authority::Authority;
use super::{RETRY, TIMEOUT, curl};
use crate::commands::{clone_url, working_copy};
use crate::operations::free_address;
use crate::support::{Server, command, run_to_end};

#[test]
fn a_working_copy_is_pushed_and_cloned_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let [root, chain, key] = ["root.pem", "chain.pem", "key.pem"].map(|name| dir.path().join(name));
    Authority::new(&root).certify("127.0.0.1", &chain, &key);
    let address = free_address();
    let settings = [
        ["--listen", "127.0.0.1:0"],
        ["--domain", &address],
        ["--tls", "files"],
        ["--tls-listen", &address],
        ["--tls-http", "127.0.0.1:0"],
        ["--tls-certificate", chain.to_str().unwrap()],
        ["--tls-key", key.to_str().unwrap()],
    ];
    let server = Server::start_with(settings.as_flattened(), &dir.path().join("data"));
    let work = dir.path().join("hello");
    working_copy(&work);
    let url = format!("https://{address}");
    let began = Instant::now();
    while !curl(&["--cacert", root.to_str().unwrap(), &format!("{url}/health")]).0 {
        assert!(began.elapsed() < TIMEOUT, "the certificate is not served");
        std::thread::sleep(RETRY);
    }
    let mut push = command();
    push.args(["push", "--server", &url])
        .current_dir(&work)
        .env("HOME", dir.path())
        .env_remove("XDG_DATA_HOME");
    let refused = run_to_end(&mut push);
    assert!(!refused.ok, "nobody trusts that authority: {refused:?}");
    assert!(refused.err.contains("certificate"), "{refused:?}");
    let pushed = run_to_end(push.env("GIT_SSL_CAINFO", &root));
    let clone = clone_url(&pushed);
    assert!(clone.starts_with("https://"), "{clone}");
    let output = std::process::Command::new("git")
        .args(["clone", "--quiet", &clone, "copy"])
        .current_dir(dir.path())
        .env("GIT_SSL_CAINFO", &root)
        .env("GIT_TRACE_CURL", "1")
        .output()
        .unwrap();
    let trace = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{trace}");
    assert!(trace.contains("HTTP/2"), "git uses HTTP/2: {trace}");
    drop(server);
}
