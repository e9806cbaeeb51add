//! Names of non-native properties, on the command line or in the on-disk property ZAP.

use super::ZfsProp;

/// The kinds of property names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropName {
    /// A native property.
    Native(ZfsProp),
    /// A user property: it has a colon in its name.
    User(String),
    /// Space or objects of a user, group or project.
    UserQuota(UserQuotaProp, String),
    /// `written@SNAPSHOT` or `written#BOOKMARK`: space written since.
    Written(String),
}

impl PropName {
    /// Reads a user's word. `None`: no such property.
    pub fn parse(word: &str) -> Option<Self> {
        if let Some(prop) = ZfsProp::from_user(word) {
            return Some(Self::Native(prop));
        }
        if let Some((quota, who)) = UserQuotaProp::parse(word) {
            return Some(Self::UserQuota(quota, who.into()));
        }
        let since =
            word.strip_prefix("written").filter(|rest| rest.len() > 1 && rest.starts_with(['@', '#']));
        if let Some(since) = since {
            return Some(Self::Written(since.into()));
        }
        is_user_property(word).then(|| Self::User(word.into()))
    }
}

/// Whether this has the form of a user property's name: a colon, and of the other characters only lower-case letters,
/// digits and `-._`.
#[doc(alias = "zfs_prop_user")]
pub fn is_user_property(name: &str) -> bool {
    let valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.:".contains(&b);
    name.contains(':') && name.bytes().all(valid)
}

macro_rules! user_quotas {
    ($($(#[$doc:meta])* $variant:ident = $prefix:literal,)*) => {
        /// Space and object quotas and usage; the name goes on with the user, group or project.
        #[doc(alias = "zfs_userquota_prop_t")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum UserQuotaProp {
            $($(#[$doc])* $variant,)*
        }

        impl UserQuotaProp {
            /// All of them, in OpenZFS's order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Prefix of the property's name.
            pub const fn prefix(self) -> &'static str {
                match self {
                    $(Self::$variant => $prefix,)*
                }
            }
        }
    };
}

user_quotas! {
    /// Space that a user takes.
    UserUsed = "userused@",
    /// Space that a user may take.
    UserQuota = "userquota@",
    /// Space that a group takes.
    GroupUsed = "groupused@",
    /// Space that a group may take.
    GroupQuota = "groupquota@",
    /// Objects that a user has.
    UserObjUsed = "userobjused@",
    /// Objects that a user may have.
    UserObjQuota = "userobjquota@",
    /// Objects that a group has.
    GroupObjUsed = "groupobjused@",
    /// Objects that a group may have.
    GroupObjQuota = "groupobjquota@",
    /// Space that a project takes.
    ProjectUsed = "projectused@",
    /// Space that a project may take.
    ProjectQuota = "projectquota@",
    /// Objects that a project has.
    ProjectObjUsed = "projectobjused@",
    /// Objects that a project may have.
    ProjectObjQuota = "projectobjquota@",
}

impl UserQuotaProp {
    /// Splits a property name into kind and user, group or project; nothing behind the `@` is id 0, see
    /// [`UserQuotaProp::id`].
    pub fn parse(word: &str) -> Option<(Self, &str)> {
        let split = |quota: &Self| word.strip_prefix(quota.prefix()).map(|who| (*quota, who));
        Self::ALL.iter().find_map(split)
    }

    /// The id in `who`, unless it is a name. OpenZFS reads it as C does a number, for which no digits are 0.
    #[doc(alias = "userquota_propname_decode")]
    pub fn id(who: &str) -> Option<u64> {
        if who.is_empty() { Some(0) } else { who.parse().ok() }
    }

    /// Whether this is a limit, as opposed to a used amount.
    pub fn is_quota(self) -> bool {
        self.prefix().ends_with("quota@")
    }

    /// Whether objects are counted, as opposed to bytes.
    pub fn counts_objects(self) -> bool {
        self.prefix().contains("obj")
    }
}
