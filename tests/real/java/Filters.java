import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/** Apache's own SQL92 filters: one JSON line with an expression and messages' properties in, one with the results out. */
public class Filters {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject question = JSON.parseObject(line);
            JSONObject answer = new JSONObject(true);
            try {
                Expression filter = FilterFactory.INSTANCE.get("SQL92").compile(question.getString("expression"));
                JSONArray results = new JSONArray();
                for (Object message : question.getJSONArray("messages")) {
                    results.add(selects(filter, ((JSONObject) message).getInnerMap()));
                }
                answer.put("selected", results);
            } catch (Throwable error) {
                answer.put("error", error.getMessage());
            }
            out.println(answer.toJSONString());
        }
        out.flush();
    }

    /** As ExpressionMessageFilter#isMatchedByCommitLog does. */
    static boolean selects(Expression filter, Map<String, Object> properties) {
        try {
            Object result = filter.evaluate(new EvaluationContext() {
                @Override public Object get(String name) {
                    return properties.get(name);
                }

                @Override public Map<String, Object> keyValues() {
                    return properties;
                }
            });
            return result instanceof Boolean && (Boolean) result;
        } catch (Throwable error) {
            return false;
        }
    }
}
