//! The branch of HEAD.

use std::collections::BTreeMap;

use grasp_core::{Namespace, RefName};

/// Chooses among the branches there are: the wish, the present one, `main`, `master`, the first by name.
///
/// Without branches the present HEAD stays, for a clone of an empty repository shows it too.
pub(super) fn choose<T>(
    wish: Option<&RefName>,
    present: Option<&RefName>,
    refs: &BTreeMap<RefName, T>,
) -> Option<RefName> {
    let usual = ["refs/heads/main", "refs/heads/master"].map(RefName::new);
    let usual = usual.iter().filter_map(|name| name.as_ref().ok());
    let branches = || refs.keys().filter(|n| matches!(n.namespace(), Namespace::Branch(_)));
    let candidates = wish.into_iter().chain(present).chain(usual);
    candidates
        .filter(|name| refs.contains_key(*name))
        .find(|name| matches!(name.namespace(), Namespace::Branch(_)))
        .or_else(|| branches().next())
        .or(present)
        .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(branch: &str) -> RefName {
        RefName::new(&format!("refs/heads/{branch}")).unwrap()
    }

    fn chosen(wish: Option<&str>, present: Option<&str>, branches: &[&str]) -> Option<String> {
        let refs = branches.iter().map(|branch| (name(branch), ())).collect();
        let (wish, present) = (wish.map(name), present.map(name));
        choose(wish.as_ref(), present.as_ref(), &refs).map(|name| name.to_string())
    }

    type Case<'a> = (Option<&'a str>, Option<&'a str>, &'a [&'a str], Option<&'a str>);

    #[test]
    fn head_follows_the_rules_in_their_order() {
        let cases: [Case<'_>; 8] = [
            (Some("dev"), Some("main"), &["dev", "main"], Some("refs/heads/dev")),
            (Some("dev"), Some("old"), &["main", "old"], Some("refs/heads/old")),
            (None, Some("gone"), &["a", "main", "master"], Some("refs/heads/main")),
            (None, Some("gone"), &["a", "master"], Some("refs/heads/master")),
            (None, Some("gone"), &["b", "a"], Some("refs/heads/a")),
            (Some("dev"), Some("main"), &[], Some("refs/heads/main")),
            (None, None, &["z"], Some("refs/heads/z")),
            (None, None, &[], None),
        ];
        for (wish, present, branches, expected) in cases {
            let found = chosen(wish, present, branches);
            assert_eq!(found.as_deref(), expected, "{wish:?} {present:?} {branches:?}");
        }
    }

    #[test]
    fn head_names_no_tag() {
        let tag: RefName = "refs/tags/v1".parse().unwrap();
        let refs = BTreeMap::from([(tag.clone(), ()), (name("a"), ())]);
        assert_eq!(choose(Some(&tag), None, &refs), Some(name("a")));
    }
}
