# Runs all checks of CI.
check:
    bash .ci/run

# Runs the checks of a release beside those.
check-release:
    bash .ci/release

test:
    cargo test --workspace

# Writes the lists of public items, after an intended change.
api:
    .ci/api --update

bench:
    cargo bench -p grasp-relay
    cargo bench -p grasp-sync
    cargo bench -p grasp-tests --bench git --bench pages --bench scale --bench sync

# Installs relays of other projects, which the tests of grasp-sync connect to. The first needs protoc. It is installed without
# its lock file, which names a crate that current compilers refuse.
other-relays:
    cargo install --root target/other_relays nostr-rs-relay
    cargo install --locked --root target/other_relays --path tests/other_relays

# Needs cargo-fuzz and a nightly compiler; the corpus is replayed by `just test` without either.
fuzz target seconds="60":
    cd $(dirname $(ls -d */fuzz/fuzz_targets/{{target}}.rs))/../.. && cargo +nightly fuzz run {{target}} -- -max_total_time={{seconds}}
