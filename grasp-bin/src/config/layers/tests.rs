use std::time::Duration;

use clap::{Args as _, Command, FromArgMatches as _};

use super::*;

struct Set(BTreeMap<&'static str, &'static str>);

impl Vars for Set {
    fn var(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|value| !value.is_empty()).map(|value| (*value).to_owned())
    }
    fn names(&self) -> Vec<String> {
        self.0.keys().map(|name| (*name).to_owned()).collect()
    }
}

fn flags(args: &[&str]) -> Flags {
    let command = Flags::augment_args(Command::new("grasp").no_binary_name(true));
    Flags::from_arg_matches(&command.get_matches_from(args)).unwrap()
}

fn load<const N: usize>(
    file: &str,
    vars: [(&'static str, &'static str); N],
    args: &[&str],
) -> Result<Loaded, Problems> {
    let file = Some((Path::new("grasp.toml"), file));
    Layers::over(file, &Set(vars.into()), &flags(args))
}

fn complaint(file: &str) -> String {
    load(file, [], &[]).unwrap_err().to_string()
}

fn source(loaded: &Loaded, key: &str) -> String {
    loaded.source(table::find(key).unwrap()).to_string()
}

#[test]
fn defaults_are_loopback_and_a_directory_beside_us() {
    let config = load("", [], &[]).unwrap().config;
    assert_eq!(config.listen.to_string(), "127.0.0.1:7334");
    assert_eq!(config.settings.data_dir, PathBuf::from("data"));
    assert!(config.domain.is_none() && !config.settings.outbound.allow_private);
}

#[test]
fn data_goes_to_the_users_own_place_if_there_is_one_and_wherever_it_is_said() {
    let xdg = [("XDG_DATA_HOME", "/home/alice/.data")];
    let loaded = load("", xdg, &[]).unwrap();
    assert_eq!(loaded.config.settings.data_dir, PathBuf::from("/home/alice/.data/grasp"));
    assert_eq!(source(&loaded, "data_dir"), "XDG_DATA_HOME");
    let said = load("data_dir = '/srv/grasp'", xdg, &[]).unwrap();
    assert_eq!(said.config.settings.data_dir, PathBuf::from("/srv/grasp"));
    let flag = load("data_dir = '/srv/grasp'", xdg, &["--data-dir", "here"]).unwrap();
    assert_eq!(flag.config.settings.data_dir, PathBuf::from("here"));
}

#[test]
fn a_variable_beats_the_file_and_a_flag_beats_both() {
    let file = "max_ahead = '5m'\n[relay]\nfilters = 1\nsubscriptions = 2\n";
    let vars = [("GRASP_RELAY_FILTERS", "10"), ("GRASP_RELAY_SUBSCRIPTIONS", "20")];
    let loaded = load(file, vars, &["--relay-filters", "100"]).unwrap();
    let settings = &loaded.config.settings;
    assert_eq!((settings.relay.filters, settings.relay.subscriptions), (100, 20));
    assert_eq!(settings.max_ahead, Duration::from_secs(300));
    assert_eq!(source(&loaded, "relay.filters"), "--relay-filters");
    assert_eq!(source(&loaded, "relay.subscriptions"), "GRASP_RELAY_SUBSCRIPTIONS");
    assert_eq!(source(&loaded, "max_ahead"), "grasp.toml:1");
    assert_eq!(source(&loaded, "relay.max_limit"), "default");
}

#[test]
fn lists_are_arrays_or_commas_or_repeated_flags() {
    let relays = |loaded: Loaded| loaded.config.settings.sync.engine.bootstrap.len();
    assert_eq!(
        relays(load("bootstrap = ['wss://a.example', 'wss://b.example']", [], &[]).unwrap()),
        2
    );
    let vars = [("GRASP_BOOTSTRAP", "wss://a.example, wss://b.example,wss://c.example")];
    assert_eq!(relays(load("", vars, &[]).unwrap()), 3);
    let args = ["--bootstrap", "wss://a.example", "--bootstrap", "wss://b.example"];
    assert_eq!(relays(load("", [], &args).unwrap()), 2);
}

#[test]
fn a_switch_may_stand_alone() {
    let allowed =
        |args: &[&str]| load("", [], args).unwrap().config.settings.outbound.allow_private;
    assert!(allowed(&["--allow-private-targets"]));
    assert!(allowed(&["--allow-private-targets=true", "--listen", "127.0.0.1:0"]));
    assert!(!allowed(&["--allow-private-targets=false"]));
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_what_was_meant() {
    let said = complaint("listen = '127.0.0.1:1'\n[relay]\nevent_byte = 5\n[nonsense]\nx = 1\n");
    assert!(said.contains("grasp.toml:3: relay.event_byte:"), "{said}");
    assert!(said.contains("perhaps relay.event_bytes is meant"), "{said}");
    assert!(said.contains("grasp.toml:5: nonsense.x: there is no such setting"), "{said}");
}

#[test]
fn a_value_that_cannot_be_read_is_named_where_it_stands() {
    for (file, said) in [
        (
            "listen = 'nowhere'",
            "grasp.toml:1: listen: invalid socket address syntax; expected ADDR:PORT",
        ),
        ("\ndomain = 'a b'", "grasp.toml:2: domain: not a URL; expected HOST[:PORT][/MOUNT]"),
        ("maintainers = 'all'", "expected reciprocal or plain"),
        ("listen = ['127.0.0.1:1', '127.0.0.1:2']", "listen: expected one value"),
        ("[relay]\nfilters = 0", "grasp.toml:2: relay.filters: expected a number from 1"),
        ("[relay]\nfilters = 1.5", "relay.filters: expected one value"),
        ("[log]\nfilter = 'grasp=loud'", "grasp.toml:2: log.filter: expected levels"),
        ("operator = 'npub1nobody'", "operator: expected a public key"),
        ("bootstrap = ['https://x.example']", "bootstrap: expected ws:// or wss://"),
        #[cfg(not(feature = "nostr-lmdb"))]
        (
            "store = 'nostr-lmdb'",
            "store: this build was made without nostr-lmdb; expected one of: sqlite",
        ),
        ("a = ", "grasp.toml:1: "),
    ] {
        let complaint = complaint(file);
        assert!(complaint.contains(said), "{file}: {complaint}");
    }
    let from_variable = load("", [("GRASP_LISTEN", "x")], &[]).unwrap_err().to_string();
    assert!(from_variable.starts_with("GRASP_LISTEN: listen: "), "{from_variable}");
    let from_flag = load("", [], &["--listen", "x"]).unwrap_err().to_string();
    assert!(from_flag.starts_with("--listen: listen: "), "{from_flag}");
}

#[test]
fn what_is_impossible_together_names_the_one_that_was_set() {
    let said = complaint("[relay]\n\nmax_limit = 10\n");
    assert_eq!(said, "grasp.toml:3: relay.max_limit: relay.default_limit is above relay.max_limit");
    assert!(load("[relay]\nmax_limit = 10\ndefault_limit = 10\n", [], &[]).is_ok());
    assert!(complaint("max_ahead = '59s'").contains("grasp.toml:1: max_ahead"));
    assert!(complaint("[sync]\nfull_pass_earliest = '26h'").contains("full_pass_latest"));
}

#[test]
fn every_problem_is_told_at_once() {
    assert_eq!(complaint("listen = 'x'\nmaintainers = 'x'\n").lines().count(), 2);
}

#[test]
fn an_empty_variable_is_none_and_a_strange_one_is_only_mentioned() {
    let vars = [("GRASP_LISTEN", ""), ("GRASP_PORT_7334_TCP", "tcp://10.0.0.1:7334")];
    let loaded = load("", vars, &[]).unwrap();
    assert_eq!(loaded.strangers, ["GRASP_PORT_7334_TCP"]);
    assert_eq!(source(&loaded, "listen"), "default");
}

#[test]
fn what_is_printed_as_in_force_is_read_back_as_the_same() {
    let file = "domain = 'git.example:8443/x'\nbootstrap = ['wss://a.example']\n[hunt]\nhosts = ['github.com=10/60']\n\
                [about]\ncontact = 'a \"b\"'\n[archive]\nidentifiers = ['x y']\n[purgatory]\nwait = '90s'\n";
    let once = load(file, [], &[]).unwrap();
    let printed = crate::config::reference::in_force(&once);
    let twice = load(&printed, [], &[]).unwrap();
    for setting in table::all() {
        let (before, after) = ((setting.show)(&once.config), (setting.show)(&twice.config));
        assert_eq!(before, after, "{}", setting.key);
    }
    assert_eq!((table::find("domain").unwrap().show)(&twice.config), ["git.example:8443/x"]);
}

#[test]
fn no_two_settings_share_a_key_a_variable_or_a_flag() {
    let count = table::all().count();
    let distinct =
        |name: fn(&Setting) -> String| table::all().map(name).collect::<BTreeSet<_>>().len();
    assert_eq!(distinct(|setting| setting.key.to_owned()), count);
    assert_eq!(distinct(Setting::variable), count);
    assert_eq!(distinct(Setting::flag), count);
}

#[test]
fn every_setting_takes_its_own_default_back() {
    let defaults = Config::default();
    for setting in table::all() {
        let texts = (setting.show)(&defaults);
        if texts.is_empty() {
            continue;
        }
        let mut config = Config::default();
        (setting.read)(&mut config, &texts)
            .unwrap_or_else(|error| panic!("{}: {error}", setting.key));
        assert_eq!((setting.show)(&config), texts, "{}", setting.key);
    }
}
