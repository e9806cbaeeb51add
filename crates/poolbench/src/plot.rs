//! Plots: bars on a terminal, and an SVG file with the range of the runs on each bar.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::report::{Results, Unit};
use super::stats::Figure;

/// Width of the longest bar in columns.
const BAR: f64 = 40.0;

/// One chart: a column of a table.
struct Chart<'a> {
    title: String,
    unit: Unit,
    bars: Vec<(String, &'a Figure)>,
    most: f64,
}

fn charts(results: &Results) -> Vec<Chart<'_>> {
    let one = |(at, (name, unit)): (usize, &(&'static str, Unit))| {
        let bars: Vec<_> = results.measured(at).collect();
        let most = bars.iter().map(|(_, figure)| figure.max).fold(0.0, f64::max);
        let shown = if *unit == Unit::Speed { "MB/s" } else { "per second" };
        let title = format!("{}: {name}, {shown}", results.title);
        (!bars.is_empty() && most > 0.0).then_some(Chart { title, unit: *unit, bars, most })
    };
    results.columns.iter().enumerate().filter_map(one).collect()
}

/// Prints bars for each measured column.
///
/// # Errors
/// Errors of the output.
pub fn bars(results: &Results, out: &mut dyn Write) -> io::Result<()> {
    for chart in charts(results) {
        writeln!(out, "\n{}", chart.title)?;
        let width = chart.bars.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        for (label, figure) in &chart.bars {
            let len = (figure.median / chart.most * BAR).round() as usize;
            let value = chart.unit.nice(figure.median);
            writeln!(out, "  {label:<width$}  {:#<1$} {value}", "", len.max(1))?;
        }
    }
    Ok(())
}

/// An SVG document of all charts, one below the other.
pub fn svg(all: &[Results]) -> String {
    const LEFT: f64 = 260.0;
    const WIDE: f64 = 440.0;
    const ROW: f64 = 20.0;
    let (mut body, mut top) = (String::new(), 10.0);
    for chart in all.iter().flat_map(charts) {
        top += 24.0;
        // Writing to a string cannot fail.
        let _ = writeln!(
            body,
            r#"<text x="10" y="{top:.0}" font-weight="bold">{}</text>"#,
            escaped(&chart.title)
        );
        top += 8.0;
        for (label, figure) in &chart.bars {
            let x = |value: f64| LEFT + value / chart.most * WIDE;
            let (middle, base) = (top + ROW / 2.0, top + ROW / 2.0 + 4.0);
            let _ = writeln!(
                body,
                r##"<text x="{:.0}" y="{base:.0}" text-anchor="end">{}</text><rect x="{LEFT:.0}" y="{:.0}" width="{:.1}" height="{:.0}" fill="#4a7db0"/><path d="M{:.1} {middle:.0}H{:.1}" stroke="#222"/><text x="{:.1}" y="{base:.0}">{} {}</text>"##,
                LEFT - 8.0,
                escaped(label),
                top + 3.0,
                x(figure.median) - LEFT,
                ROW - 6.0,
                x(figure.min),
                x(figure.max),
                x(figure.max) + 8.0,
                chart.unit.nice(figure.median),
                figure.limit.word(),
            );
            top += ROW;
        }
    }
    let (width, height) = (LEFT + WIDE + 160.0, top + 20.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

fn escaped(text: &str) -> String {
    let one = |c: char| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        c if c.is_control() => "?".to_owned(),
        c => c.to_string(),
    };
    text.chars().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    #[test]
    fn bars_are_as_long_as_their_share() {
        let mut out = Vec::new();
        bars(&example(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lens: Vec<usize> = text.lines().map(|line| line.matches('#').count()).collect();
        assert_eq!(lens, [0, 0, 36, 1, 0, 0, 36], "{text}");
    }

    #[test]
    fn svg_is_escaped_and_has_a_bar_for_each_figure() {
        let text = svg(&[example(), example()]);
        assert_eq!(text.matches("<rect x=").count(), 6);
        assert!(text.contains("&lt;raidz1&gt;") && !text.contains("<raidz1>"));
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    }
}
