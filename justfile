# What CI runs, in one word.
check:
    bash .ci/run

test:
    cargo test --workspace

# Writes the lists of public items, after an intended change.
api:
    .ci/api --update

bench:
    cargo bench -p grasp-relay --features nostr-sqlite,nostr-lmdb
    cargo bench -p grasp-sync
    cargo bench -p grasp-tests --bench git --bench scale --bench sync

# Relays that nobody here wrote, for grasp-sync's tests to talk to. The first needs protoc, and is not locked: its own lock
# names a crate that no compiler of today takes.
strangers:
    cargo install --root target/strangers nostr-rs-relay
    cargo install --locked --root target/strangers --path tests/strangers

# Needs cargo-fuzz and a nightly compiler; the corpus is replayed by `just test` without either.
fuzz target seconds="60":
    cd $(dirname $(ls -d */fuzz/fuzz_targets/{{target}}.rs))/../.. && cargo +nightly fuzz run {{target}} -- -max_total_time={{seconds}}
