// The page that report.cc fills: markup, style and the script that draws the charts.
#pragma once

namespace tutti::events {

// A whole HTML document with one place, "@DATA@", for the run's data as JSON.
extern const char* const report_page;

}  // namespace tutti::events
