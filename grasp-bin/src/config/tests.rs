use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args as _, Command, FromArgMatches as _};

use super::{Config, Flags, Loaded, Problems, in_force, merge, settings, variables};

/// Returns all values that are set, as a file has them.
fn values(config: &Config) -> BTreeMap<&'static str, String> {
    let value = |setting: &super::Setting| Some((setting.key, setting.value(config)?));
    settings().iter().filter_map(value).collect()
}

fn flags(args: &[&str]) -> Result<Flags, clap::Error> {
    let command = Flags::augment_args(Command::new("grasp").no_binary_name(true));
    Flags::from_arg_matches(&command.try_get_matches_from(args)?)
}

fn load<const N: usize>(
    file: &str,
    vars: [(&'static str, &'static str); N],
    args: &[&str],
) -> Result<Loaded, Problems> {
    let file = Some((Path::new("grasp.toml"), file));
    let vars = variables(
        vars.into_iter()
            .map(|(name, value)| (name.into(), value.into())),
    );
    merge(file, &vars, &flags(args).unwrap())
}

fn complaint(file: &str) -> String {
    load(file, [], &[]).unwrap_err().to_string()
}

#[test]
fn defaults_are_loopback_and_a_directory_below_the_current_one() {
    let config = load("", [], &[]).unwrap().config;
    assert_eq!(config.listen.to_string(), "127.0.0.1:7334");
    assert_eq!(config.settings.data_dir, PathBuf::from("data"));
    assert!(config.domain.is_none() && !config.settings.outbound.allow_private);
}

#[test]
fn data_goes_to_the_users_directory_unless_another_is_set() {
    let xdg = [("XDG_DATA_HOME", "/home/alice/.data")];
    let loaded = load("", xdg, &[]).unwrap();
    assert_eq!(
        loaded.config.settings.data_dir,
        PathBuf::from("/home/alice/.data/grasp")
    );
    assert_eq!(loaded.source("data_dir").to_string(), "XDG_DATA_HOME");
    let set = load("data_dir = '/srv/grasp'", xdg, &[]).unwrap();
    assert_eq!(set.config.settings.data_dir, PathBuf::from("/srv/grasp"));
    let flag = load("data_dir = '/srv/grasp'", xdg, &["--data-dir", "here"]).unwrap();
    assert_eq!(flag.config.settings.data_dir, PathBuf::from("here"));
}

#[test]
fn a_variable_overrides_the_file_and_a_flag_overrides_both() {
    let file = "[purgatory]\nhold_for = '5m'\n[relay]\nconnections = 1\n[sync]\nconnections = 2\n";
    let vars = [
        ("GRASP_RELAY_CONNECTIONS", "10"),
        ("GRASP_SYNC_CONNECTIONS", "20"),
    ];
    let loaded = load(file, vars, &["--relay-connections", "100"]).unwrap();
    let settings = &loaded.config.settings;
    assert_eq!(
        (settings.relay.connections, settings.sync.engine.connections),
        (100, 20)
    );
    assert_eq!(settings.purgatory.hold_for, Duration::from_secs(300));
    let source = |key: &str| loaded.source(key).to_string();
    assert_eq!(source("relay.connections"), "--relay-connections");
    assert_eq!(source("sync.connections"), "GRASP_SYNC_CONNECTIONS");
    assert_eq!(source("purgatory.hold_for"), "grasp.toml:2");
    assert_eq!(source("relay.event_bytes"), "default");
}

#[test]
fn lists_are_arrays_or_commas_or_repeated_flags() {
    let relays = |loaded: Loaded| loaded.config.settings.sync.engine.bootstrap.len();
    assert_eq!(
        relays(
            load(
                "bootstrap = ['wss://a.example', 'wss://b.example']",
                [],
                &[]
            )
            .unwrap()
        ),
        2
    );
    let vars = [(
        "GRASP_BOOTSTRAP",
        "wss://a.example, wss://b.example,wss://c.example",
    )];
    assert_eq!(relays(load("", vars, &[]).unwrap()), 3);
    let args = [
        "--bootstrap",
        "wss://a.example",
        "--bootstrap",
        "wss://b.example",
    ];
    assert_eq!(relays(load("", [], &args).unwrap()), 2);
}

#[test]
fn a_switch_needs_no_value() {
    let allowed = |args: &[&str]| {
        load("", [], args)
            .unwrap()
            .config
            .settings
            .outbound
            .allow_private
    };
    assert!(allowed(&["--allow-private-targets"]));
    assert!(allowed(&[
        "--allow-private-targets=true",
        "--listen",
        "127.0.0.1:0"
    ]));
    assert!(!allowed(&["--allow-private-targets=false"]));
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_what_is_there() {
    let text = complaint("listen = '127.0.0.1:1'\n[relay]\nevent_byte = 5\n[nonsense]\nx = 1\n");
    assert!(
        text.contains("grasp.toml:3: relay.event_byte: unknown field"),
        "{text}"
    );
    assert!(text.contains("`event_bytes`"), "{text}");
    assert!(
        text.contains("grasp.toml:5: nonsense.x: unknown field"),
        "{text}"
    );
}

#[test]
fn a_bad_value_is_named_with_its_key_and_source() {
    for (file, expected) in [
        (
            "listen = 'nowhere'",
            "grasp.toml:1: listen: invalid socket address syntax",
        ),
        ("\ndomain = 'a b'", "grasp.toml:2: domain: not a URL"),
        ("maintainers = 'all'", "expected `reciprocal` or `plain`"),
        (
            "listen = ['127.0.0.1:1', '127.0.0.1:2']",
            "grasp.toml:1: listen: ",
        ),
        (
            "[relay]\nconnections = 0",
            "grasp.toml:2: relay.connections: ",
        ),
        (
            "[relay]\nconnections = 1.5",
            "grasp.toml:2: relay.connections: ",
        ),
        (
            "[log]\nfilter = 'grasp=loud'",
            "grasp.toml:2: log.filter: expected levels",
        ),
        (
            "operator = 'npub1nobody'",
            "operator: expected a public key",
        ),
        (
            "bootstrap = ['https://x.example']",
            "bootstrap: expected ws:// or wss://",
        ),
        (
            "[git]\npush_bytes = 'much'",
            "grasp.toml:2: git.push_bytes: expected bytes",
        ),
        ("a = ", "grasp.toml:1: "),
    ] {
        let complaint = complaint(file);
        assert!(complaint.contains(expected), "{file}: {complaint}");
    }
    for (variable, expected) in [
        (
            ("GRASP_LISTEN", "x"),
            "GRASP_LISTEN: listen: invalid socket address syntax",
        ),
        (
            ("GRASP_MAINTAINERS", "x"),
            "GRASP_MAINTAINERS: maintainers: unknown variant `x`",
        ),
        (
            ("GRASP_RELAY_CONNECTIONS", "0"),
            "GRASP_RELAY_CONNECTIONS: relay.connections: ",
        ),
    ] {
        let complaint = load("", [variable], &[]).unwrap_err().to_string();
        assert!(complaint.starts_with(expected), "{complaint}");
    }
    let from_flag = flags(&["--listen", "x"]).unwrap_err().to_string();
    assert!(from_flag.contains("--listen"), "{from_flag}");
}

#[test]
fn settings_that_contradict_each_other_are_refused_where_one_was_set() {
    let complaint = complaint("[relay]\n\nevent_bytes = '6MiB'\n");
    let expected =
        "grasp.toml:3: relay.event_bytes: an event must fit into a message, which may have 5MiB";
    assert_eq!(complaint, expected);
    assert!(load("[relay]\nevent_bytes = '4MiB'\n", [], &[]).is_ok());
}

#[test]
fn every_problem_is_reported_at_once() {
    assert_eq!(
        complaint("listen = 'x'\nmaintainers = 'x'\n")
            .lines()
            .count(),
        2
    );
}

#[test]
fn an_empty_variable_is_not_set_and_an_unknown_one_is_only_reported() {
    let vars = [
        ("GRASP_LISTEN", ""),
        ("GRASP_PORT_7334_TCP", "tcp://10.0.0.1:7334"),
    ];
    let loaded = load("", vars, &[]).unwrap();
    assert_eq!(loaded.unknown_vars, ["GRASP_PORT_7334_TCP"]);
    assert_eq!(loaded.source("listen").to_string(), "default");
}

#[test]
fn the_printed_configuration_is_read_back_as_the_same() {
    let file = "domain = 'git.example:8443/x'\nbootstrap = ['wss://a.example']\n[hunt]\nhosts = ['github.com:10,60']\n\
                [about]\ncontact = 'a \"b\"'\n[archive]\nidentifiers = ['x y']\n[purgatory]\nhold_for = '90s'\n";
    let once = load(file, [], &[]).unwrap();
    let printed = in_force(&once);
    let twice = load(&printed, [], &[]).unwrap();
    let all = |loaded: &Loaded| values(&loaded.config);
    assert_eq!(all(&once), all(&twice));
    assert_eq!(all(&twice)["domain"], "\"git.example:8443/x\"");
    assert_eq!(all(&twice)["purgatory.hold_for"], "\"1m 30s\"");
}

#[test]
fn every_flag_is_its_key_with_dashes() {
    let command = Flags::augment_args(Command::new("grasp"));
    let long = |id: &str| {
        command
            .get_arguments()
            .find(|arg| arg.get_id() == id)?
            .get_long()
    };
    for setting in settings() {
        // The mode of a section has the section's name.
        let key = setting.key.trim_end_matches(".mode");
        assert_eq!(
            long(setting.key),
            Some(key.replace(['.', '_'], "-").as_str())
        );
    }
    let flags: BTreeSet<_> = settings().iter().map(super::Setting::flag).collect();
    assert_eq!(
        (flags.len(), settings().len() + 1),
        (settings().len(), command.get_arguments().count())
    );
}

#[test]
fn every_default_can_be_set() {
    let defaults = values(&Config::default());
    for (key, value) in &defaults {
        let file = match key.split_once('.') {
            Some((section, name)) => format!("[{section}]\n{name} = {value}\n"),
            None => format!("{key} = {value}\n"),
        };
        let loaded = load(&file, [], &[]).unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_eq!(values(&loaded.config), defaults, "{key}");
    }
}

#[test]
fn a_variable_may_list_hosts_with_their_limits() {
    let vars = [("GRASP_HUNT_HOSTS", "github.com:10,60 git.example:8080:2,9")];
    let loaded = load("", vars, &[]).unwrap();
    let hosts: Vec<_> = loaded
        .config
        .settings
        .hunt
        .hosts
        .keys()
        .map(|host| host.as_str())
        .collect();
    assert_eq!(hosts, ["git.example:8080", "github.com"]);
}
