//! The kinds of quotas, and the entries of the master node that name their tables.

use engine::dmu::SpecialObject;
use ondisk::names::master_node;

/// Whose quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaKind {
    /// Bytes of a user.
    User,
    /// Bytes of a group.
    Group,
    /// Bytes of a project.
    Project,
    /// Objects of a user.
    UserObjects,
    /// Objects of a group.
    GroupObjects,
    /// Objects of a project.
    ProjectObjects,
}

impl QuotaKind {
    pub(super) const ALL: [Self; 6] =
        [Self::User, Self::Group, Self::Project, Self::UserObjects, Self::GroupObjects, Self::ProjectObjects];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::User => master_node::USERQUOTA,
            Self::Group => master_node::GROUPQUOTA,
            Self::Project => master_node::PROJECTQUOTA,
            Self::UserObjects => master_node::USEROBJQUOTA,
            Self::GroupObjects => master_node::GROUPOBJQUOTA,
            Self::ProjectObjects => master_node::PROJECTOBJQUOTA,
        }
    }

    pub(super) fn default_name(self) -> &'static str {
        match self {
            Self::User => master_node::DEFAULTUSERQUOTA,
            Self::Group => master_node::DEFAULTGROUPQUOTA,
            Self::Project => master_node::DEFAULTPROJECTQUOTA,
            Self::UserObjects => master_node::DEFAULTUSEROBJQUOTA,
            Self::GroupObjects => master_node::DEFAULTGROUPOBJQUOTA,
            Self::ProjectObjects => master_node::DEFAULTPROJECTOBJQUOTA,
        }
    }

    /// The kind whose default quota a property is.
    pub fn of_default(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.default_name() == name)
    }

    pub(super) fn account(self) -> SpecialObject {
        match self {
            Self::User | Self::UserObjects => SpecialObject::UserUsed,
            Self::Group | Self::GroupObjects => SpecialObject::GroupUsed,
            Self::Project | Self::ProjectObjects => SpecialObject::ProjectUsed,
        }
    }

    pub(super) fn counts_objects(self) -> bool {
        matches!(self, Self::UserObjects | Self::GroupObjects | Self::ProjectObjects)
    }
}
