# What CI runs, in one word.
check:
    bash .ci/run

test:
    cargo test --workspace

bench:
    cargo bench -p grasp-core
    cargo bench -p grasp-relay
    cargo bench -p grasp-tests --bench git

# Needs cargo-fuzz and a nightly compiler; the corpus is replayed by `just test` without either.
fuzz target seconds="60":
    cd grasp-core && cargo +nightly fuzz run {{target}} -- -max_total_time={{seconds}}
