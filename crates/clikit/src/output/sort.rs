//! The order of datasets in `zfs list` and `zfs get`.
//!
//! Without `-s` or `-S`, and for rows that compare equal: by name, a dataset before its snapshots, and snapshots of
//! one dataset by their creation txg, regardless of their names.

use std::cmp::Ordering;

use super::row::DatasetRow;

/// One `-s` (or, reversed, `-S`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortColumn {
    /// Native or user property.
    pub property: String,
    /// Largest first.
    pub reverse: bool,
    /// Compared as a number; otherwise byte by byte, in the literal format.
    pub numeric: bool,
}

/// Sorts rows by the given columns, the first one being the most significant.
pub fn sort(rows: &mut [DatasetRow], columns: &[SortColumn]) {
    rows.sort_by(|a, b| compare(a, b, columns));
}

fn compare(a: &DatasetRow, b: &DatasetRow, columns: &[SortColumn]) -> Ordering {
    let by_columns = columns.iter().map(|c| by_column(a, b, c));
    by_columns
        .fold(Ordering::Equal, Ordering::then)
        .then_with(|| by_name((&a.name, a.createtxg), (&b.name, b.createtxg)))
}

/// A dataset without the property sorts last in either direction.
fn by_column(a: &DatasetRow, b: &DatasetRow, column: &SortColumn) -> Ordering {
    let directed = |o: Ordering| if column.reverse { o.reverse() } else { o };
    if column.property == "name" {
        return directed(a.name.cmp(&b.name));
    }
    match (a.props.get(&column.property), b.props.get(&column.property)) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(x), Some(y)) if column.numeric => directed(x.number.cmp(&y.number)),
        (Some(x), Some(y)) => directed(x.literal.cmp(&y.literal)),
    }
}

/// The order of names (each with the txg of its creation): a dataset, then its snapshots by age, then its descendants.
pub fn by_name(a: (&str, u64), b: (&str, u64)) -> Ordering {
    fn parts(name: &str) -> (&str, Option<&str>) {
        name.split_once('@').map_or((name, None), |(stem, snapshot)| (stem, Some(snapshot)))
    }
    let ((stem, snapshot), (other_stem, other)) = (parts(a.0), parts(b.0));
    let by_age = || match (snapshot, other) {
        (Some(x), Some(y)) => a.1.cmp(&b.1).then_with(|| x.cmp(y)),
        _ => snapshot.is_some().cmp(&other.is_some()),
    };
    stem.cmp(other_stem).then_with(by_age)
}

#[cfg(test)]
mod tests {
    use super::super::row::{DatasetKind, Prop, Source};
    use super::*;

    fn row(name: &str, createtxg: u64, used: Option<u64>) -> DatasetRow {
        let prop = used.map(|n| Prop { number: Some(n), ..Prop::text(n.to_string(), Source::None) });
        let props = prop.into_iter().map(|p| ("used".into(), p)).collect();
        DatasetRow { name: name.into(), kind: DatasetKind::Filesystem, createtxg, props }
    }

    fn names(rows: &[DatasetRow]) -> Vec<&str> {
        rows.iter().map(|r| r.name.as_str()).collect()
    }

    #[test]
    fn snapshots_follow_their_dataset_by_age() {
        let mut rows = ["t/a", "t#mark", "t@zebra", "t", "t-b", "t@ant"].map(|n| row(n, 9, None));
        rows[2].createtxg = 3;
        sort(&mut rows, &[]);
        assert_eq!(names(&rows), ["t", "t@zebra", "t@ant", "t#mark", "t-b", "t/a"]);
    }

    #[test]
    fn rows_without_the_property_go_last_both_ways() {
        let rows = [row("a", 0, None), row("b", 0, Some(9)), row("c", 0, Some(10)), row("d", 0, Some(9))];
        let column = SortColumn { property: "used".into(), reverse: false, numeric: true };
        let mut up = rows.clone();
        sort(&mut up, std::slice::from_ref(&column));
        assert_eq!(names(&up), ["b", "d", "c", "a"]);
        let mut down = rows;
        sort(&mut down, &[SortColumn { reverse: true, ..column }]);
        assert_eq!(names(&down), ["c", "b", "d", "a"]);
    }
}
