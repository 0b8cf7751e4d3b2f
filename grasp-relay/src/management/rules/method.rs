//! The table of methods.

use std::fmt;
use std::str::FromStr;

use super::Rank;
use super::text::invalid;
use grasp_core::ParseError;

/// What is known of a method without a call of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodInfo {
    /// The name in requests.
    pub name: &'static str,
    /// The lowest rank that may call it.
    pub rank: Rank,
    /// Whether it changes something: such a call is signed, and written to the audit log.
    pub is_change: bool,
    /// The parameters, as JSON with names instead of values; `?` marks what may be left out.
    pub params: &'static str,
    /// The result, likewise.
    pub result: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// Defines the methods: variant, name, rank, `read` or `change`, parameters, result, and what it does.
macro_rules! methods {
    ($($variant:ident $name:literal $rank:ident $effect:ident $params:literal $result:literal $help:literal;)*) => {
        /// A method of NIP-86, or one of GRASP's own, whose names begin with `grasp.`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "their texts say it")]
        pub enum Method {
            $($variant),*
        }

        impl Method {
            /// All methods, in the order of the reference.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns what is known of it without a call.
            pub const fn info(self) -> MethodInfo {
                match self {
                    $(Self::$variant => MethodInfo {
                        name: $name,
                        rank: Rank::$rank,
                        is_change: methods!(@$effect),
                        params: $params,
                        result: $result,
                        help: $help,
                    }),*
                }
            }
        }
    };
    (@read) => { false };
    (@change) => { true };
}

methods! {
    SupportedMethods "supportedmethods" Anyone read "[]" "[name]"
        "Lists the methods that this server has and that the caller may call.";
    WhoAmI "grasp.whoami" Anyone read "[]" "{pubkey, roles, methods}"
        "Says who the caller is to the server.";
    OpenSession "grasp.session" Anyone read "[]" "{token, expires_at}"
        "Returns a token that authorizes the caller's reads for 15 minutes, as `Authorization: Bearer TOKEN`. Has to be signed.";
    Status "grasp.status" Observer read "[]" "status"
        "Returns the status, as `/status.json` has it.";
    ListRepos "grasp.listrepos" Anyone read "[{query?, owner?, state?, after?, limit?}]"
        "{repos: [{repo, name, bytes, refs, active_at, state, until?}], next?}"
        "Lists repositories by the bytes of their git data; those of the caller, unless an observer calls.";
    GetUsage "grasp.getusage" Anyone read "[pubkey?]" "{total_bytes, total_quota, rows}"
        "Returns the git data of all owners, or of one with its repositories; of the caller, unless an observer calls.";
    SetQuota "grasp.setquota" Admin change "[pubkey or repo, bytes or null]" "row"
        "Gives an owner or a repository a quota of its own, or takes it back.";
    Repair "grasp.repair" Admin change "[repo]" "true if objects are missing still"
        "Salvages damaged packs of a repository, and fetches what is missing.";
    Preview "grasp.preview" Anyone read "[method, params]" "{text}"
        "Says what a call would do, without doing it.";
    BanPubkey "banpubkey" Moderator change "[pubkey, reason?]" "true"
        "Refuses events of an author, hides the stored ones, and holds the author's repositories.";
    UnbanPubkey "unbanpubkey" Moderator change "[pubkey, reason?]" "true"
        "Ends that, and restores what was hidden and held.";
    ListBannedPubkeys "listbannedpubkeys" Observer read "[]" "[{pubkey, reason, since, by, fixed}]"
        "Lists banned authors.";
    AllowPubkey "allowpubkey" Moderator change "[pubkey, reason?]" "true"
        "Hosts repositories of this owner, where only listed ones are hosted.";
    UnallowPubkey "unallowpubkey" Moderator change "[pubkey, reason?]" "true"
        "Ends that, and holds the repositories.";
    ListAllowedPubkeys "listallowedpubkeys" Observer read "[]" "[{pubkey, reason, since, by, fixed}]"
        "Lists allowed owners.";
    BanEvent "banevent" Moderator change "[id, reason?]" "true"
        "Refuses an event, and hides it if it is stored. Not of announcements and states: ban or hold their repository.";
    AllowEvent "allowevent" Moderator change "[id, reason?]" "true"
        "Ends that, and restores the event.";
    ListBannedEvents "listbannedevents" Observer read "[]" "[{id, reason, since, by, fixed}]"
        "Lists banned events.";
    DisallowKind "disallowkind" Admin change "[kind]" "true"
        "Refuses events of a kind. Kinds that repositories, deletions and requests to vanish need cannot be refused.";
    AllowKind "allowkind" Admin change "[kind]" "true"
        "Accepts events of a kind again.";
    ListAllowedKinds "listallowedkinds" Observer read "[]" "[kind]"
        "Lists the kinds of git and its threads that are not refused.";
    BlockIp "blockip" Admin change "[address or network, reason?]" "true"
        "Closes connections of a network, and refuses new ones. Not of loopback and trusted proxies.";
    UnblockIp "unblockip" Admin change "[address or network, reason?]" "true"
        "Ends that.";
    ListBlockedIps "listblockedips" Observer read "[]" "[{ip, reason, since, by, fixed}]"
        "Lists blocked networks.";
    BanRepo "grasp.banrepo" Moderator change "[npub, npub/name or name, reason?]" "true"
        "Hosts no repository of an owner, of an owner and a name, or of a name; holds those that are hosted.";
    UnbanRepo "grasp.unbanrepo" Moderator change "[npub, npub/name or name, reason?]" "true"
        "Ends that, and restores what was held.";
    ListBannedRepos "grasp.listbannedrepos" Observer read "[]" "[{repo, reason, since, by, fixed}]"
        "Lists banned repositories and names.";
    AllowRepo "grasp.allowrepo" Moderator change "[npub, npub/name or name, reason?]" "true"
        "Hosts such repositories, where only listed ones are hosted.";
    UnallowRepo "grasp.unallowrepo" Moderator change "[npub, npub/name or name, reason?]" "true"
        "Ends that, and holds the repositories.";
    ListAllowedRepos "grasp.listallowedrepos" Observer read "[]" "[{repo, reason, since, by, fixed}]"
        "Lists allowed repositories and names.";
    HoldRepo "grasp.holdrepo" Moderator change "[repo, reason?]" "true"
        "Takes a repository with its events out of service, to be restored within 90 days.";
    RestoreRepo "grasp.restorerepo" Moderator change "[repo, reason?]" "true"
        "Puts a held repository back into service. What its author deleted is never restored.";
    ListHeld "grasp.listheld" Observer read "[]" "[{repo, cause, reason, since, until, by}]"
        "Lists held repositories.";
    ListRoles "grasp.listroles" Observer read "[]" "[{id, label, description, color, order, members}]"
        "Lists roles with their members.";
    CreateRole "createrole" Admin change "[id, label, description, color, order]" "true"
        "Creates a role, which is a label without rights.";
    EditRole "editrole" Admin change "[id, label, description, color, order]" "true"
        "Changes the texts of a role.";
    DeleteRole "deleterole" Admin change "[id]" "true"
        "Deletes a role and takes it from its members.";
    AssignRole "assignrole" Admin change "[pubkey, id]" "true"
        "Gives a key a role: `observer`, `moderator`, `admin`, or a label. Only the operator gives `admin`.";
    UnassignRole "unassignrole" Admin change "[pubkey, id]" "true"
        "Takes a role from a key.";
    ChangeRelayName "changerelayname" Admin change "[text]" "true"
        "Changes the name in NIP-11, on the landing page and on the status page at once.";
    ChangeRelayDescription "changerelaydescription" Admin change "[text]" "true"
        "Changes the description in NIP-11 and on the landing page at once.";
    ChangeRelayIcon "changerelayicon" Admin change "[url]" "true"
        "Changes the picture in NIP-11 at once.";
    ListAudit "grasp.listaudit" Observer read "[{after?, actor?, method?, limit?}]"
        "[{seq, at, actor, via, method, params, error?}]"
        "Lists changes and refused calls, the newest first.";
}

impl Method {
    /// Returns the name in requests.
    pub const fn name(self) -> &'static str {
        self.info().name
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match Self::ALL.iter().find(|method| method.name() == text) {
            Some(method) => Ok(*method),
            None => invalid("there is no such method; `supportedmethods` lists those there are"),
        }
    }
}
